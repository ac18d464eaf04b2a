"""Interfaces of other projects over our encoders and indexes; each module imports the project that it is for."""
