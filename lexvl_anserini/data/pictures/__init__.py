"""Pictures: decoding, archives, drawn ones."""
