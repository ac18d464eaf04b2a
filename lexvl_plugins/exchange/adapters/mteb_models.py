"""Our packaged models as entries of MTEB's registry, in the form of `mteb/models/model_implementations`.

This file can be copied there as it is. Before MTEB has it, `mteb_registry.register_models()` adds the entries to the
registry of the running process. `mteb.get_model("lexvl/photos-vdr")` then loads a search model over Lucene's impacts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mteb.models.model_meta import ModelMeta, ScoringFunction

if TYPE_CHECKING:
    from mteb.models.models_protocols import SearchProtocol


def lexvl_loader(model_name: str, revision: str | None = None, **kwargs: Any) -> SearchProtocol:
    """The packaged model of an entry.

    Args:
        model_name: `lexvl/` and the name of a packaged checkpoint.
        revision: the first 40 digits of the checkpoint's digest, None for any.
        kwargs: encoder, the name of ours; device; options of the encoder.

    Raises:
        UsageError: the installed package has another revision.
    """
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

lexvl_mini = ModelMeta(
    loader=lexvl_loader,
    loader_kwargs={"encoder": "vdr"},
    name="lexvl/lexvl-mini",
    model_type=["sparse"],
    modalities=["text"],
    languages=["eng-Latn"],
    open_weights=True,
    revision="4b6fa8bb4d904b5dac7e2b7d05843de92b928705",
    release_date="2026-11-23",
    n_parameters=22_567_168,
    n_embedding_parameters=11_720_448,
    memory_usage_mb=86,
    embed_dim=29523,
    license="not specified",
    max_tokens=256,
    reference=_PACKAGE,
    similarity_fn_name=ScoringFunction.DOT_PRODUCT,
    framework=["PyTorch"],
    use_instructions=False,
    public_training_code=_PACKAGE,
    public_training_data=None,
    training_datasets={"SciFact", "NFCorpus"},
    adapted_from="sentence-transformers/all-MiniLM-L6-v2",
    citation=_VDR_CITATION,
)

photos_vdr = ModelMeta(
    loader=lexvl_loader,
    loader_kwargs={"encoder": "vdr-crossmodal"},
    name="lexvl/photos-vdr",
    model_type=["sparse"],
    modalities=["text", "image"],
    languages=["eng-Latn"],
    open_weights=True,
    revision="14e139707f7756d734001d7fec1c827628fa4ea1",
    release_date="2026-11-28",
    n_parameters=30_808_224,
    n_embedding_parameters=11_720_448,
    memory_usage_mb=118,
    embed_dim=3126,
    license="not specified",
    max_tokens=64,
    reference=_PACKAGE,
    similarity_fn_name=ScoringFunction.DOT_PRODUCT,
    framework=["PyTorch"],
    use_instructions=False,
    public_training_code=_PACKAGE,
    public_training_data=None,
    training_datasets=set(),
    citation=_VDR_CITATION,
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
