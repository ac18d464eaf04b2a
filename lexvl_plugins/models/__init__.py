"""Published models whose sparse heads lie beside the weights of a network: BGE-M3 and UEmbed."""

from __future__ import annotations

from lexvl_anserini.encoders.cards import CROSS_MODAL, TWO_LENGTHS, Card, list_names

BGE_M3 = Card(
    loader="lexvl_plugins.models.bge_m3:load_bge_m3",
    paper="Chen et al., BGE-M3, Findings of ACL 2024 (arXiv 2402.03216)",
    checkpoints=("BAAI/bge-m3",),
    licence="MIT",
    lengths=TWO_LENGTHS,
)
UEMBED = Card(
    loader="lexvl_plugins.models.uembed:load_uembed",
    paper="Song et al., UEmbed, 2026 (arXiv 2608.02583)",
    modalities=CROSS_MODAL,
    checkpoints=list_names("Alibaba-NLP/UEmbed-", "2B", "4B", "9B"),
    licence="CC BY 4.0",
    lengths=("max_length",),
    example="--corpus folder:pages --checkpoint Alibaba-NLP/UEmbed-2B",
)
