"""The encoder of an index as a search uses it: with changes of the user, and for several fields as one encoder."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import typer

from lexvl_anserini.data.lines import log_once
from lexvl_anserini.encoders.cards import remark_on
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.families.bm25 import BM25Settings
from lexvl_anserini.encoders.loading import load_encoder_from
from lexvl_anserini.engines.lucene.fields import load_word_analysis
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.manifest import FIELDS, EncoderRef, FieldEntry, Manifest
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.queries.query_vectors import FieldsTower, QueryField

MovedCheckpoint = Annotated[
    str | None, typer.Option("--checkpoint", help="Where the encoder's checkpoint is now, if it was moved.")
]
MovedTokenizer = Annotated[str | None, typer.Option("--tokenizer", help="Where its tokenizer is now, if it was moved.")]


@dataclass(frozen=True)
class EncoderChanges:
    """How a search changes the encoder of an index.

    Attributes:
        checkpoint: the new place of the same files.
        tokenizer: likewise.
        device: auto, cpu, cuda, ...
        options: of the query side, for example `query_topk`.
    """

    checkpoint: MovedCheckpoint = None
    tokenizer: MovedTokenizer = None
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)

    def load(self, manifest: Manifest) -> Encoder:
        """Loads the encoder of an index, with the changes."""
        if manifest.fields:
            if self.checkpoint or self.tokenizer:
                example = f"--set {manifest.fields[-1]}.checkpoint=FOLDER"
                raise UsageError(f"an index of several fields has several encoders; name the field: {example}")
            return load_fields(manifest.encoder, self.options, self.device)
        if remark := remark_on(manifest.encoder.checkpoint, manifest.corpus.name):
            log_once(remark, logging.WARNING)
        return load_encoder_from(
            manifest.encoder, self.checkpoint, self.tokenizer, self.device, self.options, manifest.vocabulary_digest
        )

    def describe(self, manifest: Manifest, note: Mapping[str, Any]) -> EncoderRef:
        """Returns the encoder's entry in a run's manifest: that of the index, with the changes and a search's note."""
        moved = {key: value for key, value in (("checkpoint", self.checkpoint), ("tokenizer", self.tokenizer)) if value}
        options = {**manifest.encoder.options, **self.options, **note}
        return EncoderRef({**manifest.encoder, **moved, "options": options})


def load_fields(ref: EncoderRef, changes: Mapping[str, Any], device: str = "auto") -> Encoder:
    """Loads the encoders of an index of several fields as one that encodes its queries.

    Changes are options by field: `text.weight`, `image.checkpoint` and `image.tokenizer` for places of the same files,
    `image.<option>` of the query side of its encoder; and the runtime of all.
    """
    entries, options = ref.fields, {**ref.options, **changes}
    by_field = split_field_options([entry.name for entry in entries], options)
    fields = tuple(load_field(entry, by_field[entry.name], device) for entry in entries)
    tower = FieldsTower(fields)
    if not any(field.weight for field in fields):
        raise UsageError(f"the fields {', '.join(by_field)} have weight 0 each; give one of them more")
    return Encoder(FIELDS, "impact", tower, tower, options=options)


def change_weights(model: Encoder, weights: Mapping[str, Any]) -> Encoder:
    """Gives the fields of an index's encoder other weights, `{"text.weight": 2}`."""
    assert isinstance(model.query, FieldsTower)
    fields = tuple(
        replace(field, weight=read_weight(field.name, weights.get(f"{field.name}.weight", field.weight)))
        for field in model.query.fields
    )
    tower = FieldsTower(fields)
    return replace(model, query=tower, document=tower, options={**model.options, **weights})


def load_field(entry: FieldEntry, options: dict[str, Any], device: str) -> QueryField:
    """Loads the query side of a field; a field of weight 0 loads no encoder."""
    weight = read_weight(entry.name, options.pop("weight"))
    if not weight:
        return QueryField(entry.name, 0)
    if entry.kind == "text":
        options.pop("runtime", None)
        if options:
            raise UsageError(
                f"option {next(iter(options))} of field {entry.name!r}: the impacts of BM25 have its options; encode "
                "and join again with other ones"
            )
        analyse = load_word_analysis(BM25Settings.of(entry.encoder.options))
        return QueryField(entry.name, weight, quantiser=Quantiser.from_json(entry["quantiser"]), analyse=analyse)
    places = (options.pop("checkpoint", None), options.pop("tokenizer", None))
    model = load_encoder_from(entry.encoder, *places, device, options, entry.vocabulary_digest)
    quantiser = Quantiser.from_json(entry["quantiser"]) if entry.get("quantiser") else model.fit_quantiser(Quantiser())
    return QueryField(entry.name, weight, model.query, quantiser)


def read_weight(name: str, value: Any) -> int:
    """The weight of a field, which the user may give as a text."""
    if not str(value).isdecimal() or len(str(value)) > 7:
        raise UsageError(f"weight {value!r:.40} of field {name!r}: expected a whole number from 0 to 9,999,999")
    return int(value)


def split_field_options(names: Iterable[str], options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """`{"text.weight": 2, "image.topk": 64}` by field; an option without a field, such as the runtime, is of all."""
    by_field: dict[str, dict[str, Any]] = {name: {} for name in names}
    for key, value in options.items():
        name, dot, option = key.partition(".")
        if dot and name not in by_field or not dot and key != "runtime":
            examples = ", ".join(f"{name}.weight" for name in by_field)
            raise UsageError(f"option {key!r}: an index of several fields has options of a field, such as {examples}")
        for each in [name] if dot else by_field:
            by_field[each][option or key] = value
    return by_field
