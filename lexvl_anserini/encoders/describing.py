"""What `encode --list-encoders` and `--describe` print: cards, and what the encoders' loaders say.

Equation, options, their types, defaults and meaning come from the docstring and the signature of an encoder's loader.
`list_encoders` loads no model library; the other functions about encoders do.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from lexvl_anserini.encoders.cards import CARDS
from lexvl_anserini.ground.machine import check_model_libraries
from lexvl_anserini.ground.registry import import_home


class Option(NamedTuple):
    """One option of an encoder, as `--set KEY=VALUE` takes it; type and default as a user reads them."""

    name: str
    type: str
    default: str
    meaning: str


def read_equation(name: str) -> str:
    """The first line of the docstring of an encoder's loader: what the encoder computes."""
    return (inspect.getdoc(import_home(CARDS[name].loader)) or "").partition("\n")[0]


def list_options(name: str) -> list[Option]:
    """The options of an encoder's loader, in the order of its signature."""
    load = import_home(CARDS[name].loader)
    meanings = read_meanings(load)
    options = []
    for p in inspect.signature(load, eval_str=True).parameters.values():
        # None means the checkpoint's own value, or the one in the option's meaning.
        default = "-" if p.default is None else str(p.default)
        default = default.lower() if isinstance(p.default, bool) else default
        options.append(Option(p.name, name_type(p.annotation), default, meanings.get(p.name, "")))
    return [option for option in options if option.name != "source"]


def name_type(annotation: Any) -> str:
    """An annotation as a user reads it: `Literal["max", "sum"] | None` is `max|sum`."""
    parts = get_args(annotation)
    if get_origin(annotation) is Literal:
        return "|".join(map(str, parts))
    if get_origin(annotation) in (Union, UnionType):
        return "|".join(name_type(part) for part in parts if part is not type(None))
    return getattr(annotation, "__name__", str(annotation))


def read_meanings(function: Callable[..., Any]) -> dict[str, str]:
    """The `Args:` section of a docstring: name -> text on one line."""
    section = re.split(r"\n(?=\S)", (inspect.getdoc(function) or "").partition("Args:\n")[2], maxsplit=1)[0]
    entries = re.findall(r"^    (\w+): (.*(?:\n     +.*)*)", section, re.MULTILINE)
    return {name: " ".join(meaning.split()) for name, meaning in entries}


def build_example(name: str) -> str:
    """A command that encodes a corpus with the encoder, or the whole command of its card."""
    card = CARDS[name]
    if card.example and card.example.startswith("python"):
        return card.example
    corpus = "coco" if card.reads_images else "demo"
    checkpoint = f" --checkpoint {card.checkpoints[0]}" if card.checkpoints else ""
    return f"python -m lexvl_anserini.encode --encoder {name} {card.example or f'--corpus {corpus}{checkpoint}'}"


def list_encoders() -> list[dict[str, Any]]:
    """One row per registered encoder: its name, and the facts of its card that are printed."""
    facts = ("paper", "modalities", "checkpoints", "licence")
    return [{"name": name, **{fact: getattr(card, fact) for fact in facts}} for name, card in CARDS.items()]


def describe_encoder(name: str) -> dict[str, Any]:
    """Everything about an encoder: its card, equation, options and an example."""
    card = CARDS[name]
    check_model_libraries()
    text = (inspect.getdoc(import_home(card.loader)) or "").partition("\n")[2]
    row = next(row for row in list_encoders() if row["name"] == name)
    return {
        "name": name,
        "equation": read_equation(name),
        "about": re.split(r"^(?:Args|Raises):", text, maxsplit=1, flags=re.MULTILINE)[0].strip(),
        **row,
        "options": [option._asdict() for option in list_options(name)],
        "example": build_example(name),
    }


def format_listing(rows: list[dict[str, Any]]) -> str:
    """The rows of `list_encoders` as text: name, what an encoder reads, licence, paper, known checkpoints."""
    lines = []
    for row in rows:
        checkpoints, reads = ", ".join(row["checkpoints"]) or "-", ",".join(row["modalities"])
        lines.append(f"{row['name']:16}  {reads:10}  {row['licence']:15}  {row['paper']}  [{checkpoints}]")
    return "\n".join(lines)


def format_description(description: dict[str, Any]) -> str:
    """What `describe_encoder` returns as text."""
    heading = "options (--set KEY=VALUE; - is the checkpoint's own, or depends on other options):"
    options = ["  {name}={default}  ({type})  {meaning}".format(**o).rstrip() for o in description["options"]]
    lines = [f"{description['name']}: {description['equation']}", ""]
    lines += [description["about"], ""] if description["about"] else []
    lines += [f"reads        {', '.join(description['modalities'])}", f"paper        {description['paper']}"]
    lines += [f"licence      {description['licence']}", f"checkpoints  {', '.join(description['checkpoints']) or '-'}"]
    lines += ["", heading if options else "no options", *options, "", f"Example: {description['example']}"]
    return "\n".join(lines)
