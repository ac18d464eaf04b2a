"""Sparse models by sentence-transformers' SparseEncoder, whatever their modules; and sparse autoencoders without it."""

from __future__ import annotations

from lexvl_anserini.encoders.cards import CROSS_MODAL, Card

# Other plug-ins that this one imports.
NEEDS = ()

SPARSE_ENCODER = Card(
    loader="lexvl_plugins.sparse.sparse_encoder:load_sparse_encoder",
    paper="whatever sentence-transformers' SparseEncoder loads",
    modalities=CROSS_MODAL,
    lengths=("max_length",),
    example="--corpus demo --direction text-to-text --checkpoint FOLDER",
    modules=("*",),
)
SAE = Card(
    loader="lexvl_plugins.sparse.autoencoder:load_sae",
    paper="Wen et al., CSR, ICML 2025 (arXiv 2503.01776)",
    lengths=("max_length",),
    example="--corpus demo --checkpoint FOLDER",
    modules=("SparseAutoEncoder",),
)
