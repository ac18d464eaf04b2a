"""Code words: where terms are strongest in images and texts, by hand, and the sheet of FDT's tiny model."""

import json

import numpy as np
import pytest
from colour_towers import colour_tower, painted
from invoking import invoked
from PIL import Image

import eval.analyses.codewords
from eval.analyses.codewords import build_term_strips, collect_captions, find_strongest_tokens
from eval.report import strips
from lexvl_anserini.data.dataset import Dataset, load_dataset
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.encoders.parts.clip_bpe import ClipBpe
from lexvl_anserini.encoders.parts.images.grounding import compute_token_logits
from lexvl_anserini.encoders.parts.tokens import list_token_names
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.records import Document, Qrel, Topic


def toy() -> Encoder:
    return Encoder("toy", "impact", query=object(), document=colour_tower(2))


def folder_of(tmp_path, **boxes) -> Dataset:
    """A folder with one image per name: a black square of 8 pixels with a box of a colour."""
    for name, (colour, box) in boxes.items():
        painted(8, 8, **{colour: box}).save(tmp_path / f"{name}.png")
    return load_dataset(f"folder:{tmp_path}")


def test_images_are_ordered_by_their_strongest_cell(tmp_path, monkeypatch):
    """A cell is 4 x 4 pixels: all of it red, half of it, none; the map shows where."""
    monkeypatch.setattr("eval.analyses.codewords.IMAGES_AT_ONCE", 2)
    words = ["scarlet", "red"]
    monkeypatch.setattr("eval.analyses.codewords.find_strongest_tokens", lambda model, texts, dims: [words] * len(dims))
    dataset = folder_of(tmp_path, a=("blue", (0, 0, 8, 8)), b=("red", (0, 0, 4, 2)), c=("red", (4, 4, 8, 8)))
    [found] = build_term_strips(toy(), dataset, ["red"], 10)
    assert (found.query.name, found.query.text) == ("red", "scarlet, red")
    assert [one.item.name for one in found.cells] == ["c.png", "b.png", "a.png"]
    assert [round(one.score, 2) for one in found.cells] == [1.0, 0.5, 0.0]
    assert [list(one.own) for one in found.cells] == [["red"], ["red"], ["blue"]]
    pixels = np.asarray(found.cells[0].item.image).astype(int)
    assert np.ptp(pixels[7, 7]) > 200 and np.ptp(pixels[0, 0]) == 0, "in colour where the term is"
    assert [len(one.cells) for one in build_term_strips(toy(), dataset, ["red", "blue"], 2)] == [2, 2]
    assert collect_captions(dataset, list(dataset.documents())) == [], "images without captions"
    assert strips.write_legend([found], maps=True) == strips.HAS + strips.MAPPED, "a sheet without bars"
    # Unknown terms and missing images are refused.
    (tmp_path / "x").mkdir()
    (tmp_path / "x/a.txt").write_text("no picture")
    texts = load_dataset(f"folder:{tmp_path / 'x'}")
    with pytest.raises(UsageError, match="'pink' is no term of toy; its terms are such as 'red'"):
        build_term_strips(toy(), texts, ["red", "pink"], 9)
    with pytest.raises(DataError, match="no images in it"):
        build_term_strips(toy(), texts, ["red"], 9)


def test_captions_of_the_images_that_are_read():
    documents = [Document("i1", image="1.png"), Document("i2", image="2.png")]
    judged = [Qrel("1", "i1", 1), Qrel("2", "i2", 1), Qrel("3", "i1", 0)]
    topics = [Topic("1", "one"), Topic("2", "two"), Topic("3", "three")]
    dataset = Dataset("toy", "", lambda: iter(documents), lambda: iter(topics), lambda: iter(judged))
    assert collect_captions(dataset, documents[:1]) == ["one"]
    assert collect_captions(dataset, documents) == ["one", "two"]
    assert collect_captions(dataset, [Document("a", text="its own", image="a.png")]) == ["its own"]


def test_the_largest_logits_of_tokens_are_the_logits_of_texts(load):
    """The maximum over a text's tokens is the logit that pooling passes on, here of a model without special ones."""
    model = load("splade", "splade/ckpt_bert")
    texts, dims = ["a dog on the beach", "dog"], [1037, 1500]
    streamed = list(compute_token_logits(model, texts, dims))
    assert [token for token, _ in streamed] == ["a", "dog", "on", "the", "beach", "dog"]
    [best] = find_strongest_tokens(model, texts, dims[:1])
    values = {token: max(value[0] for name, value in streamed if name == token) for token, _ in streamed}
    assert best == sorted(values, key=lambda token: -values[token])[:5] and len(best) == 5
    assert find_strongest_tokens(model, [], dims) == [[], []]


def test_names_of_tokens(load, tmp_path):
    tokenizer = load("splade", "splade/ckpt_bert").query.reader.tokenizer
    names = list_token_names(tokenizer)
    assert "dog" in names.values() and "[CLS]" not in names.values()
    (tmp_path / "merges.txt").write_text("#version\nd o\ndo g</w>\n")
    names = list_token_names(ClipBpe(tmp_path / "merges.txt"))
    assert names[513] == "dog" and "<|endoftext|>" not in names.values()


@pytest.mark.shared
def test_the_command_draws_the_tokens_of_fdt(shared, tmp_path):
    folder = shared / "golden" / "fdt"
    images = tmp_path / "images"
    images.mkdir()
    for name, caption in (("big", "a dog"), ("wide", "two cats")):
        (images / f"{name}.png").write_bytes((folder / f"images/{name}.png").read_bytes())
        (images / f"{name}.txt").write_text(caption)
    model = load_encoder("fdt", str(folder), device="cpu")
    [value] = [v for token, [v] in compute_token_logits(model, ["a dog"], [7]) if token == "a"]
    assert np.isfinite(value)
    given = ["--corpus", f"folder:{images}", "--encoder", "fdt", "--checkpoint", folder, "--device", "cpu"]
    given += ["--output", tmp_path / "sheet.png", "--format", "json", "--term", "fdt00007", "--term", "fdt00300"]
    rows = json.loads(invoked(eval.analyses.codewords.command, *given).splitlines()[-1])
    assert {"fdt00007", "fdt00300", "sheet", "bytes"} == rows.keys() and rows["fdt00007"]
    assert Image.open(tmp_path / "sheet.png").height > 600
