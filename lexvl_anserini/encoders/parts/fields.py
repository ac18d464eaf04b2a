"""The query side of an index of several fields: a query is the weighted vectors of all fields, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from lexvl_anserini.encoders.encoder import Kind, OtherModality, Tower, read_topic
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.ground.records import Document, Topic
from lexvl_anserini.ground.typed import check_text


@dataclass(frozen=True)
class QueryField:
    """A field of the index, as its queries are encoded: by a tower, or for BM25 by `analyse`, the words of a text."""

    name: str
    weight: int
    tower: Tower | None = None
    quantiser: Quantiser = Quantiser()
    analyse: Callable[[str], Iterable[str]] | None = None

    def read_topic(self, topic: Topic) -> str:
        """The input that a topic gives this field."""
        text = read_topic(topic) if self.tower is None else self.tower.read_topic(topic)
        check_text(f"topic {topic.query_id!r}", text)
        return text


@dataclass(frozen=True)
class FieldsTower:
    """The fields of an index; its inputs are, by name, those of each field that reads the topic. It has no matrix."""

    fields: tuple[QueryField, ...]
    kind: ClassVar[Kind] = "impact"
    binary: ClassVar[bool] = False

    def read_topic(self, topic: Topic) -> Any:
        """The input of each field that reads texts, or images, as the topic is; a field of weight 0 reads nothing."""
        inputs, refusal = {}, None
        for field in self.fields:
            if field.weight:
                try:
                    inputs[field.name] = field.read_topic(topic)
                except OtherModality as error:
                    refusal = error
        if not inputs and refusal is not None:
            raise refusal
        return inputs

    def read(self, document: Document) -> str:
        """Refuses documents, which the encoders of the fields have encoded before they were joined."""
        raise OtherModality(f"document {document.doc_id!r}: an index of several fields encodes queries only")

    def weights(self, inputs: Any, *others: Any) -> Any:
        """Refuses to make a matrix."""
        raise UsageError("an index of several fields has no encoder of its own; load the encoder of one of its fields")

    dense_weights = weights

    @property
    def vocabulary(self) -> Any:
        """Refuses, as `weights`."""
        return self.weights(None)


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
        for field in [name] if dot else by_field:
            by_field[field][option or key] = value
    return by_field
