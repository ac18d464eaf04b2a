"""Big things (encoders, datasets, engines) by name: a table of `name -> "module:function"`, resolved on demand.

Adding one is one file, one line here, one test.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from lexvl_anserini.errors import UnknownName

ENCODERS: Mapping[str, str] = {
    "albef": "lexvl_anserini.encoders.albef:load_albef",
    "bag-of-tokens": "lexvl_anserini.encoders.bag:load_bag_of_tokens",
    "bertlex": "lexvl_anserini.encoders.bertlex:load_bertlex",
    "blip": "lexvl_anserini.encoders.blip:load_blip",
    "bm25": "lexvl_anserini.encoders.bm25:load_bm25",
    "clip": "lexvl_anserini.encoders.clip:load_clip",
    "d2s": "lexvl_anserini.encoders.d2s:load_d2s",
    "dense-crossmodal": "lexvl_anserini.encoders.dense_crossmodal:load_dense_crossmodal",
    "dpr": "lexvl_anserini.encoders.dpr:load_dpr",
    "fdt": "lexvl_anserini.encoders.fdt:load_fdt",
    "joint": "lexvl_anserini.encoders.joint:load_joint",
    "lexlip": "lexvl_anserini.encoders.lexlip:load_lexlip",
    "sentence": "lexvl_anserini.encoders.sentence:load_sentence",
    "splade": "lexvl_anserini.encoders.splade:load_splade",
    "stair": "lexvl_anserini.encoders.stair:load_stair",
    "svdr": "lexvl_anserini.encoders.svdr:load_svdr",
    "vdr": "lexvl_anserini.encoders.vdr:load_vdr",
    "vdr-crossmodal": "lexvl_anserini.encoders.vdr_crossmodal:load_vdr_crossmodal",
}

# A dataset's name is `family`, `family/part` or `family:path`; the row is chosen by the family.
DATASETS: Mapping[str, str] = {
    "beir": "lexvl_anserini.data.beir:load_beir",
    "coco": "lexvl_anserini.data.captioned:load_captions",
    "demo": "lexvl_anserini.data.demo:load_demo",
    "embeddings": "lexvl_anserini.data.embeddings:load_embeddings",
    "flickr30k": "lexvl_anserini.data.captioned:load_captions",
    "flickr8k": "lexvl_anserini.data.captioned:load_captions",
    "folder": "lexvl_anserini.data.folder:load_folder",
    "karpathy": "lexvl_anserini.data.captioned:load_karpathy",
}

# By the kind of a manifest: what shards of that kind are indexed and searched with.
ENGINES: Mapping[str, str] = {
    "impact": "lexvl_anserini.engines.lucene:LuceneEngine",
    "dense": "lexvl_anserini.engines.faiss:FaissEngine",
    "text": "lexvl_anserini.engines.bm25:BM25Engine",
}


def resolve(kind: str, name: str, table: Mapping[str, str]) -> Any:
    """Imports and returns the object that `table` registers under `name`.

    Raises:
        UnknownName: `name` is not in the table; the message suggests the nearest.
    """
    if name not in table:
        raise UnknownName(kind, name, table)
    module, _, attribute = table[name].partition(":")
    return getattr(import_module(module), attribute)
