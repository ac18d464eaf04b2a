"""Data sets: where documents, topics and judgements come from."""
