"""Parts of encoders that read texts."""
