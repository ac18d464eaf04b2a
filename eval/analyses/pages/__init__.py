"""Pages drawn from texts, and how well pages are read."""
