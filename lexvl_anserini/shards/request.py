"""The request of one call of encode: the manifest, as far as it is known before anything is encoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lexvl_anserini.data.dataset import Dataset
from lexvl_anserini.encoders.encoder import as_lexical
from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.ground.installed import versions_of
from lexvl_anserini.ground.manifest import Counts, EncodedCorpus, Manifest
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.shards.corpus_reading import CheckedCorpus
from lexvl_anserini.shards.layout import Layout, Part

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder

# Packages whose versions decide the bytes of a shard.
VERSIONED = ("lexvl-anserini", "numpy", "sentence-transformers", "tokenizers", "torch", "transformers")


def requested(
    dataset: Dataset,
    checked: CheckedCorpus,
    model: Encoder,
    quantiser: Quantiser,
    layout: Layout,
    batch_size: int,
    part: Part | None = None,
) -> Manifest:
    """The manifest before anything is encoded: without shards and counts, and perhaps without the scale of impacts.

    Raises:
        ArtefactError: the towers of the encoder have different vocabularies.
    """
    vocabulary = model.vocabulary if model.kind == "impact" else None
    if vocabulary is not None and as_lexical(model.query).vocabulary.digest != vocabulary.digest:
        raise ArtefactError(f"encoder {model.name!r}: query and document towers have different vocabularies")
    documents, digest, _ = checked.summary
    return Manifest(
        kind=model.kind,
        encoder=model.identity(),
        quantiser={} if vocabulary is None else model.fitted(quantiser).to_json(),
        vocabulary={} if vocabulary is None else {"size": len(vocabulary), "digest": vocabulary.digest},
        corpus=EncodedCorpus(
            name=dataset.name,
            split=dataset.split,
            data_dir=dataset.data_dir,
            escape_ids=dataset.escape_ids,
            direction=dataset.direction,
            documents=documents,
            digest=digest,
            **({} if part is None else part_of_corpus(part, documents)),
            **({} if checked.contents is None else {"contents": checked.contents}),
        ),
        counts=Counts(),
        layout=layout.to_json(),
        versions={**versions_of(VERSIONED), **circumstances(model, batch_size)},
    )


def part_of_corpus(part: Part, documents: int) -> dict[str, Any]:
    """The manifest's entry of a part; `documents` and `digest` beside it describe the whole corpus."""
    first, count = part.span(documents)
    return {"part": {"id": part.number, "num": part.of, "first": first, "documents": count}}


def circumstances(model: Encoder, batch_size: int) -> dict[str, str]:
    """Device, batch size and another runtime's version: besides versions, they decide the last bits of weights."""
    device, runtime = getattr(model, "device", None), getattr(model, "options", {}).get("runtime")
    last_bits = {"device": device, "batch_size": str(batch_size)} if device and model.kind != "text" else {}
    return {**last_bits, **versions_of(["onnxruntime"] if runtime == "onnx" else [])}
