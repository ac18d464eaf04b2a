"""Our packaged models as entries of MTEB's registry, in the form of `mteb/models/model_implementations`.

This file can be copied there as it is. Before MTEB has it, `mteb_registry.register_models()` adds the entries to the
registry of the running process. `mteb.get_model("lexvl/photos-vdr")` then loads a search model over Lucene's impacts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mteb.models.model_meta import ModelMeta, ScoringFunction

if TYPE_CHECKING:
    from mteb.models.models_protocols import SearchProtocol


def load_packaged(model_name: str, revision: str | None = None, **kwargs: Any) -> SearchProtocol:
    """Loads the packaged model of an entry, `lexvl/<checkpoint>`, of this revision; None for any."""
    from lexvl_plugins.exchange.adapters.mteb_search import PackagedSearch

    return PackagedSearch(model_name, revision, **kwargs)


_PACKAGE = "https://pypi.org/project/lexvl-anserini/"
_VDR_CITATION = """@inproceedings{zhou2024vdr,
  title={Retrieval-based Disentangled Representation Learning with Natural Language Supervision},
  author={Jiawei Zhou and Xiaoguang Li and Lifeng Shang and Xin Jiang and Qun Liu and Lei Chen},
  booktitle={The Twelfth International Conference on Learning Representations},
  year={2024},
  url={https://arxiv.org/abs/2212.07699},
}"""
_SHARED: dict[str, Any] = {
    "loader": load_packaged,
    "languages": ["eng-Latn"],
    "open_weights": True,
    "license": "not specified",
    "reference": _PACKAGE,
    "similarity_fn_name": ScoringFunction.DOT_PRODUCT,
    "framework": ["PyTorch"],
    "use_instructions": False,
    "public_training_code": _PACKAGE,
    "public_training_data": None,
    "n_embedding_parameters": 11_720_448,
    "model_type": ["sparse"],
    "citation": _VDR_CITATION,
}
lexvl_mini = ModelMeta(
    **_SHARED,
    loader_kwargs={"encoder": "vdr"},
    name="lexvl/lexvl-mini",
    modalities=["text"],
    revision="4b6fa8bb4d904b5dac7e2b7d05843de92b928705",
    release_date="2026-11-23",
    n_parameters=22_567_168,
    memory_usage_mb=86,
    embed_dim=29523,
    max_tokens=256,
    training_datasets={"SciFact", "NFCorpus"},
    adapted_from="sentence-transformers/all-MiniLM-L6-v2",
)
photos_vdr = ModelMeta(
    **_SHARED,
    loader_kwargs={"encoder": "vdr-crossmodal"},
    name="lexvl/photos-vdr",
    modalities=["text", "image"],
    revision="14e139707f7756d734001d7fec1c827628fa4ea1",
    release_date="2026-11-28",
    n_parameters=30_808_224,
    memory_usage_mb=118,
    embed_dim=3126,
    max_tokens=64,
    training_datasets=set(),
)
photos_dense = photos_vdr.model_copy(
    update={
        "loader_kwargs": {"encoder": "dense-crossmodal"},
        "name": "lexvl/photos-dense",
        "model_type": ["dense"],
        "release_date": "2026-11-23",
        "revision": "0edd37e44719e835e54cfc778b6ca56c2d41231b",
        "n_parameters": 29_552_056,
        "memory_usage_mb": 113,
        "embed_dim": 256,
        "similarity_fn_name": ScoringFunction.COSINE,
        "citation": None,
    }
)
