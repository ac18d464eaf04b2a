"""PLUGIN."""
