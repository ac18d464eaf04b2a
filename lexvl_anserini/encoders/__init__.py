"""Encoders are compositions: backbone, head, activation, pooling and sparsifier, per side."""
