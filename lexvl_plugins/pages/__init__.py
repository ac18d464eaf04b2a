"""PDFs and scans: their pages, the words on them (OCR), V-SPLADE, late interaction, and ViDoRe."""

from __future__ import annotations

from lexvl_anserini.encoders.cards import CROSS_MODAL, Card
from lexvl_anserini.ground.registry import CommandRow, CorpusRow

# Other plug-ins that this one imports.
NEEDS = ("photos",)

PAGES = CommandRow("lexvl_plugins.pages.pages", "Start here", "Search a folder of your own PDFs and scans")
VIDORE = CommandRow("lexvl_plugins.pages.vidore", "Evaluate runs by the rules of one dataset", "Pages: nDCG@5")
PAGES_CORPUS = CorpusRow("lexvl_plugins.pages.corpus:load_pages", has_path=True, checkpoint="texts")
VIDORE_CORPUS = CorpusRow("lexvl_plugins.pages.vidore:load_vidore", has_path=True)
NUMBERED_PICTURE = "lexvl_plugins.pages.reading:open_page"
V_SPLADE = Card(
    loader="lexvl_plugins.pages.v_splade:load_v_splade",
    paper="Cho et al., V-SPLADE, 2026 (arXiv 2605.30917)",
    modalities=CROSS_MODAL,
    checkpoints=("naver/v-splade-quality", "naver/v-splade-efficient"),
    licence="Apache-2.0",
    lengths=("text_max_length",),
    example="--corpus folder:pages --checkpoint naver/v-splade-quality",
)
MULTI_VECTOR = Card(
    loader="lexvl_plugins.pages.multi_vector:load_multi_vector",
    paper="Khattab and Zaharia, ColBERT, SIGIR 2020 (arXiv 2004.12832); Faysse et al., ColPali, ICLR 2025 (2407.01449)",
    modalities=CROSS_MODAL,
    checkpoints=("lightonai/GTE-ModernColBERT-v1", "colbert-ir/colbertv2.0", "vidore/colpali-v1.3-hf"),
    example="python -m lexvl_anserini.rerank --encoder multi-vector --checkpoint FOLDER --run RUN --output RERANKED",
)
