"""Datasets: where documents, topics and judgements come from."""
