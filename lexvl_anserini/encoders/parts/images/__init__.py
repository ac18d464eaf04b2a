"""Parts of encoders that read images."""
