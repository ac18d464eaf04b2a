"""The models, one module each."""
