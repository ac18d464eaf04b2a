"""Encoders are compositions: backbone, head, activation, pooling and sparsifier, per side."""

# Options that say where a part of an encoder lies; what is in that part is covered by the checkpoint's digest.
PLACES = ("tokenizer", "backbone_config", "query_checkpoint", "backbone_checkpoint", "merges")
