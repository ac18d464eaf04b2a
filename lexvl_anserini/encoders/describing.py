"""What `encode --list-encoders` and `--describe` print: cards, and what the encoders' own modules say.

Equation, options, their types, defaults and meaning come from the docstring and the signature of an encoder's loader.
Only `describe` and the functions about options load model libraries; `listing` loads none.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from importlib import import_module
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from lexvl_anserini.encoders.cards import CARDS
from lexvl_anserini.ground.machine import check_model_libraries
from lexvl_anserini.ground.registry import import_home

# The fields of a card that are printed.
PRINTED = ("paper", "modalities", "checkpoints", "licence")


class Option(NamedTuple):
    """One option of an encoder, as `--set KEY=VALUE` takes it: its type and default as text, and what it does."""

    name: str
    type: str
    default: str
    meaning: str


def equation_of(name: str) -> str:
    """The first line of the docstring of an encoder's module: what it computes, in one line."""
    return first_line(import_module(CARDS[name].loader.partition(":")[0]).__doc__)


def first_line(docstring: str | None) -> str:
    """The first line of a docstring."""
    return (docstring or "").strip().partition("\n")[0]


def options_of(name: str) -> list[Option]:
    """The options of an encoder's loader, in the order of its signature."""
    load = import_home(CARDS[name].loader)
    meanings = argument_meanings(load)
    return [
        Option(
            parameter.name, type_name(parameter.annotation), shown(parameter.default), meanings.get(parameter.name, "")
        )
        for parameter in inspect.signature(load, eval_str=True).parameters.values()
        if parameter.name != "source"
    ]


def shown(default: Any) -> str:
    """A default as text; "-" for None, which means the checkpoint's own value or the one in the option's meaning."""
    return "-" if default is None else str(default).lower() if isinstance(default, bool) else str(default)


def type_name(annotation: Any) -> str:
    """An annotation as a user reads it: `Literal["max", "sum"] | None` is `max|sum`."""
    parts = get_args(annotation)
    if get_origin(annotation) is Literal:
        return "|".join(map(str, parts))
    if get_origin(annotation) in (Union, UnionType):
        return "|".join(type_name(part) for part in parts if part is not type(None))
    return getattr(annotation, "__name__", str(annotation))


def argument_meanings(function: Callable[..., Any]) -> dict[str, str]:
    """The `Args:` section of a docstring: name -> text on one line."""
    text = inspect.getdoc(function) or ""
    _, heading, section = text.partition("Args:\n")
    if not heading:
        return {}
    section = re.split(r"\n(?=\S)", section, maxsplit=1)[0]
    entries = re.findall(r"^    (\w+): (.*(?:\n     +.*)*)", section, re.MULTILINE)
    return {name: " ".join(meaning.split()) for name, meaning in entries}


def example_of(name: str) -> str:
    """A command that encodes a corpus with the encoder."""
    card = CARDS[name]
    corpus = "coco" if card.reads_images else "demo"
    checkpoint = f" --checkpoint {card.checkpoints[0]}" if card.checkpoints else ""
    rest = card.example or f"--corpus {corpus}{checkpoint}"
    return f"python -m lexvl_anserini.encode --encoder {name} {rest}"


def listing() -> list[dict[str, Any]]:
    """One row per registered encoder: name, paper, modalities, checkpoints, licence."""
    return [{"name": name, **printed(name)} for name in CARDS]


def printed(name: str) -> dict[str, Any]:
    """The printed fields of an encoder's card."""
    card = CARDS[name]
    return {field: getattr(card, field) for field in PRINTED}


def describe(name: str) -> dict[str, Any]:
    """Everything about an encoder: its card, equation, options and an example."""
    fields = printed(name)
    check_model_libraries()
    docstring = inspect.getdoc(import_module(CARDS[name].loader.partition(":")[0])) or ""
    return {
        "name": name,
        "equation": equation_of(name),
        "about": docstring.partition("\n")[2].strip(),
        **fields,
        "options": [option._asdict() for option in options_of(name)],
        "example": example_of(name),
    }


def as_lines(rows: list[dict[str, Any]]) -> str:
    """The rows of `listing` as text: name, what an encoder reads, licence, paper, known checkpoints."""
    lines = []
    for row in rows:
        checkpoints, reads = ", ".join(row["checkpoints"]) or "-", ",".join(row["modalities"])
        lines.append(f"{row['name']:16}  {reads:10}  {row['licence']:15}  {row['paper']}  [{checkpoints}]")
    return "\n".join(lines)


def as_text(description: dict[str, Any]) -> str:
    """What `describe` returns as text."""
    lines = [f"{description['name']}: {description['equation']}", ""]
    lines += [description["about"], ""] if description["about"] else []
    lines += [
        f"reads        {', '.join(description['modalities'])}",
        f"paper        {description['paper']}",
        f"licence      {description['licence']}",
        f"checkpoints  {', '.join(description['checkpoints']) or '-'}",
        "",
    ]
    options = description["options"]
    heading = "options (--set KEY=VALUE; - is the checkpoint's own, or depends on other options):"
    lines.append(heading if options else "no options")
    for option in options:
        lines.append(f"  {option['name']}={option['default']}  ({option['type']})  {option['meaning']}".rstrip())
    return "\n".join([*lines, "", f"Example: {description['example']}"])
