"""Exported encoders: killed while they are written, damaged, or with files of others: the same impacts, or one line."""

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest
from damage import damaged, one_line, places
from faults import ERRORS, Ended, faults
from hostile import CHANGES, UNCHANGEABLE, VALUES
from rounds import Rounds
from tiny_encoders import BERT

from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import LexvlError
from tests.plugins.onnx.test_onnx import need_packages

pytestmark = [pytest.mark.heavy, pytest.mark.attack]

TEXTS = ["a dog on a beach", "", "two men ride horses " * 9, "Café \u2603"]
# Two models of each encoder: their files have the same names.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bag": ("bag-of-tokens", {}),
    "short bag": ("bag-of-tokens", {"max_length": 5}),
    "splade": ("splade", {"topk": 16, "query_topk": 4}),
    "sums": ("splade", {"pooling": "sum", "topk": 9}),
}
OTHERS = {"bag": "short bag", "short bag": "bag", "splade": "sums", "sums": "splade"}


def impacts(name: str, folder: Path) -> list[Any]:
    """What an export makes of the texts, on both sides."""
    model = load_encoder(MODELS[name][0], str(folder), runtime="onnx")
    vectors = [side(TEXTS).toarray().tolist() for side in (model.encode_query, model.encode_document)]
    return [*vectors, model.vocabulary.digest, model.checkpoint_digest, dict(model.options)]


class Exports:
    """Each model of torch, its export, and the impacts of that."""

    def __init__(self, folder: Path, checkpoint: Path):
        from lexvl_plugins.onnx import exporting

        self.models, self.folders, self.expected = {}, {}, {}
        for name, (encoder, options) in MODELS.items():
            self.models[name] = load_encoder(encoder, str(checkpoint), device="cpu", **options)
            self.folders[name] = folder / name
            exporting.export(self.models[name], self.folders[name])
            self.expected[name] = impacts(name, self.folders[name])

    def export(self, name: str, folder: Path) -> None:
        """Exports again, with the graphs that are there."""
        from lexvl_plugins.onnx import exporting

        stored = iter(sorted(self.folders[name].glob("*.onnx"), reverse=True) * 2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(exporting, "build_graph", lambda *_: next(stored).read_bytes())
            exporting.export(self.models[name], folder)


@pytest.fixture(scope="module")
def exports(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Exports:
    need_packages()
    return Exports(tmp_path_factory.mktemp("exports"), golden / BERT)


def test_killed_exports_are_whole_or_not_there(rounds: Rounds, exports: Exports) -> None:
    """At a call of an export, also of one that replaces another model's."""
    for _seed, random, home in rounds:
        name = random.choice(list(MODELS))
        for attempt in range(4):
            folder, before = home / f"{attempt}", random.choice([None, OTHERS[name]])
            if before:
                shutil.copytree(exports.folders[before], folder)
            number, effect = random.randint(1, 30), random.choice(["end", "end", *ERRORS])
            try:
                with faults(home, number, effect, random.random() < 0.5):
                    exports.export(name, folder)
            except Ended:
                rounds.count("exports killed")
            except LexvlError as error:
                one_line(error)
                rounds.count("exports with a failing call")
            there = [exports.expected[model] for model in (name, before) if model and folder.exists()]
            assert not there or impacts(name, folder) in there, (name, number)
            exports.export(name, folder)
            assert impacts(name, folder) == exports.expected[name]
            assert sorted(path.name for path in home.iterdir()) == [str(n) for n in range(attempt + 1)]


def json_value(random: Random, path: Path) -> None:
    """A value of a JSON file becomes another one, of any type or near the one that was."""
    content = json.loads(path.read_text())
    container, key = random.choice(list(places(content)))
    value = container[key]
    near = [value + 1, value // 2, -value] if isinstance(value, int) else [random.choice(VALUES)]
    container[key] = random.choice([*near, not value, random.choice(VALUES)])
    path.write_text(json.dumps(content), errors="surrogatepass")


def disturbed(random: Random, folder: Path, other: Path) -> str:
    """One thing in an export changes: bytes, a value, a missing file, a file of the other model, or what is hostile."""
    path = random.choice(sorted(folder.iterdir()))
    what = random.choice(["bytes", "bytes", "value", "value", "gone", "of the other", "swapped", "hostile"])
    if what == "bytes":
        path.write_bytes(damaged(random, path.read_bytes()))
    elif what == "value":
        path = folder / random.choice(["export.json", "export.json", "query.tokenizer.json"])
        json_value(random, path)
    elif what == "gone":
        path.unlink()
    elif what == "of the other":
        path.write_bytes((other / path.name).read_bytes() if (other / path.name).exists() else b"")
    elif what == "swapped":
        second = random.choice(sorted(folder.iterdir()))
        mine, theirs = path.read_bytes(), second.read_bytes()
        path.write_bytes(theirs)
        second.write_bytes(mine)
    else:
        change = random.choice(CHANGES)
        what = change.__name__
        try:
            change(random, folder, folder.parent / "ran")
        except UNCHANGEABLE:
            what += " did nothing"
    return f"{what}: {path.name}"


def test_damaged_exports_never_become_another_model(rounds: Rounds, exports: Exports) -> None:
    for _seed, random, home in rounds:
        name = random.choice(list(MODELS))
        for attempt in range(6):
            folder = home / f"{attempt}"
            shutil.copytree(exports.folders[name], folder)
            what = disturbed(random, folder, exports.folders[OTHERS[name]])
            answer = refused_or(name, folder, rounds)
            # With the description of the other, and its files, a folder is the other, and says so.
            description, other = folder / "export.json", exports.folders[OTHERS[name]] / "export.json"
            is_other = description.is_file() and description.read_bytes() == other.read_bytes()
            assert answer in (None, exports.expected[OTHERS[name] if is_other else name]), (name, what)
            assert not (home / "ran").exists(), what
            rounds.count("damaged exports")


def refused_or(name: str, folder: Path, rounds: Rounds) -> list[Any] | None:
    """The impacts; None if one line refuses the export."""
    try:
        return impacts(name, folder)
    except LexvlError as error:
        one_line(error)
        rounds.count("damaged exports refused")
        return None
