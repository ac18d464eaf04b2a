"""Every row of `--list-encoders`, from a checkpoint in its published layout through encode, index and search."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpus_folders import write_embeddings
from PIL import Image
from tiny_encoders import TINY_ENCODERS, Tiny, pytest_generate_tests  # noqa: F401
from typer.testing import CliRunner

import lexvl_anserini.encode
import lexvl_anserini.index
import lexvl_anserini.search
from lexvl_anserini.cli import make_app
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.manifest import read_manifest

# Five captions of each picture: the fifth is the topic where captions alone are searched.
TEXTS = {
    "1": ("a man on a horse", "a horse near the ocean", "a beach", "a man rides", "a man riding a horse on the beach"),
    "2": ("a dog", "a frisbee in the park", "two dogs", "a dog jumps", "two dogs playing with a frisbee"),
    "3": ("a pizza", "a wooden table", "people eating", "pizza for two", "people eating pizza on a table"),
}
CAPTIONS = {
    picture: {f"{picture}{number}": text for number, text in enumerate(texts)} for picture, texts in TEXTS.items()
}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """A captioned corpus of three pictures, as `karpathy:` names it."""
    folder = tmp_path_factory.mktemp("captions")
    random = np.random.default_rng(4)
    (folder / "images").mkdir()
    images = []
    for number, captions in CAPTIONS.items():
        pixels = random.integers(0, 256, (40, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{number}.png")
        sentences = [{"raw": text, "sentid": caption} for caption, text in captions.items()]
        images.append({"imgid": number, "filename": f"{number}.png", "split": "test", "sentences": sentences})
    (folder / "dataset.json").write_text(json.dumps({"images": images}))
    return folder


@pytest.fixture(scope="module")
def corpora(pictures, tmp_path_factory) -> Callable[[Tiny], str]:
    """`corpora(tiny)`: the captions and pictures, or vectors in their place, that it reads."""

    def of(tiny: Tiny) -> str:
        if tiny.vectors is None:
            return f"karpathy:{pictures / 'dataset.json'},{pictures / 'images'}"
        random = np.random.default_rng(5)
        images, texts = (
            {name: random.standard_normal(tiny.vectors).astype(np.float32) for name in names}
            for names in (CAPTIONS, [caption for captions in CAPTIONS.values() for caption in captions])
        )
        return f"embeddings:{write_embeddings(tmp_path_factory.mktemp('vectors'), images, texts, CAPTIONS)}"

    return of


def invoke(module: Any, *arguments: Any) -> str:
    """Standard output of a command run in this process; what it raises is raised."""
    done = CliRunner().invoke(make_app(module.command), list(map(str, arguments)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def arguments(located):
    """`arguments(tiny)`: an encoder with its checkpoint, options and tokenizer as the command line takes them."""

    def of(tiny: Tiny) -> list[str]:
        checkpoint, options = located(tiny)
        words = ["--encoder", tiny.encoder, "--device", "cpu"] + (["--checkpoint", checkpoint] if checkpoint else [])
        for key, value in options.items():
            words += ["--tokenizer", value] if key == "tokenizer" else ["--set", f"{key}={value}"]
        return words

    return of


@pytest.fixture
def indexed(arguments, located, corpora, tmp_path):
    """`indexed(tiny, direction)`: encodes and indexes the corpus by the commands; returns the index."""

    def run(tiny: Tiny, direction: str | None = None) -> Path:
        chosen = () if direction is None else ("--direction", direction)
        shards, index = tmp_path / "shards", tmp_path / "index"
        invoke(lexvl_anserini.encode, "--corpus", corpora(tiny), "--output", shards, *chosen, *arguments(tiny))
        manifest = read_manifest(shards)
        assert manifest is not None and manifest.encoder["name"] == tiny.encoder and manifest.counts["documents"] >= 3
        checkpoint, _ = located(tiny)
        assert manifest.encoder["checkpoint"] == (str(Path(checkpoint).resolve()) if checkpoint else None)
        invoke(lexvl_anserini.index, shards, "--index", index)
        return index

    return run


def found(index: Path, *arguments: Any) -> list[dict[str, Any]]:
    """The hits of one query, printed as JSON."""
    return json.loads(
        invoke(lexvl_anserini.search, "--index", index, "--device", "cpu", "--format", "json", *arguments)
    )


def check(hits: list[dict[str, Any]], ids: Iterable[str]) -> None:
    """Something was found, ranks count from 1, scores do not rise, and ids are those of the corpus."""
    assert hits and [hit["rank"] for hit in hits] == list(range(1, len(hits) + 1))
    assert {hit["doc_id"] for hit in hits} <= set(ids)
    scores = [hit["score"] for hit in hits]
    assert scores == sorted(scores, reverse=True) and np.isfinite(scores).all()


def wide(tiny: Tiny) -> Iterable[str]:
    """What lets a query of random weights have a term in common with a document."""
    return ("--set", "query_topk=-1") if tiny.encoder in ("svdr", "vdr-crossmodal") else ()


PICTURE_IDS = list(CAPTIONS)
CAPTION_IDS = [caption for captions in CAPTIONS.values() for caption in captions]


def test_a_text_is_searched(reader, indexed):
    """Texts find pictures, or the captions of one picture where the encoder reads no pictures."""
    index = indexed(reader)
    check(found(index, "--query", "a dog on the beach", *wide(reader)), PICTURE_IDS)
    run = index.parent / "x.trec"
    invoke(lexvl_anserini.search, "--index", index, "--device", "cpu", "--output", run, *wide(reader))
    topics = {line.split()[0] for line in run.read_text().splitlines()}
    assert topics and topics <= {*CAPTION_IDS, *PICTURE_IDS}


def test_a_picture_is_searched(reader_of_images, indexed, pictures):
    index = indexed(reader_of_images, "image-to-text")
    check(found(index, "--query-image", pictures / "images/2.png", *wide(reader_of_images)), CAPTION_IDS)
    with pytest.raises(UsageError, match=f"encoder '{reader_of_images.encoder}' reads images, and the query is a text"):
        found(index, "--query", "a dog")


@pytest.mark.parametrize("direction", ["text-to-image", "image-to-text"])
def test_stored_vectors_are_searched(reader_of_vectors, direction, indexed):
    """Topics have vectors in the corpus; a typed text has none, and the tower's own words say what would give one."""
    index = indexed(reader_of_vectors, direction)
    run = index.parent / "x.trec"
    invoke(lexvl_anserini.search, "--index", index, "--device", "cpu", "--output", run)
    topics, documents = ({line.split()[i] for line in run.read_text().splitlines()} for i in (0, 2))
    ids = (CAPTION_IDS, PICTURE_IDS) if direction == "text-to-image" else (PICTURE_IDS, CAPTION_IDS)
    assert topics == set(ids[0]) and documents <= set(ids[1]) and documents
    with pytest.raises(UsageError, match="topic 'query' has no embedding.*--set backbone_checkpoint=") as caught:
        found(index, "--query", "a dog")
    assert "reads images" not in str(caught.value)


def test_pictures_for_an_encoder_of_texts(reader_of_texts, arguments, pictures, tmp_path):
    """A folder of pictures: one line that says so, and no shard."""
    output = tmp_path / "out"
    corpus = ("--corpus", f"folder:{pictures / 'images'}", "--output", output)
    with pytest.raises(UsageError, match="has no text, not even a caption; this side") as caught:
        invoke(lexvl_anserini.encode, *corpus, *arguments(reader_of_texts))
    assert "\n" not in str(caught.value) and not list(output.glob("docs/*"))
