"""R@k of captioned images is a hit rate in percent; rsum adds both directions; recall keeps its own name."""

import json
from pathlib import Path

import numpy as np
import pytest
from corpus_folders import captioned_image, karpathy_folder, write_embeddings
from invoking import call_command

import eval.coco
from eval.image_text import choose_judgements
from eval.measures.inputs import JudgementSource, RunCard
from eval.measures.measure_runs import Subsets, measure_subsets
from eval.measures.metrics import HEADINGS
from eval.report.tables import build_caption_table
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.files import write_json
from lexvl_anserini.ground.manifest import RunManifest, name_manifest
from lexvl_anserini.ground.records import CorpusRef, Measurement


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    """Two test images with five captions each, in Karpathy's layout; image and caption ids collide on purpose."""
    images = [captioned_image(number, first=5 * number) for number in range(2)]
    return Path(karpathy_folder(tmp_path, "coco", images, pictures=False))


def write(path: Path, lists: dict[str, list[str]]) -> Path:
    hits = [(topic, doc_id, rank) for topic, documents in lists.items() for rank, doc_id in enumerate(documents, 1)]
    path.write_text("".join(f"{topic} Q0 {doc_id} {rank} {10 - rank} t\n" for topic, doc_id, rank in hits))
    return path


def measured(coco: Path, run: Path, direction: str, *options: str) -> dict[str, float]:
    code, text = asked(coco, run, "--direction", direction, *options)
    assert code == 0, text
    return {row["measure"]: row["value"] for row in json.loads(text)}


def test_text_to_image(coco, tmp_path):
    # Ten captions; eight find their image first, two second.
    lists = {str(c): [str(c // 5), str(1 - c // 5)] if c < 8 else ["0", "1"] for c in range(10)}
    values = measured(coco, write(tmp_path / "a.trec", lists), "text-to-image")
    assert values["HitRate@1"] == pytest.approx(8 / 10) and values["HitRate@5"] == 1
    assert values["RR@10"] == pytest.approx((8 * 1 + 2 * 1 / 2) / 10)
    assert values["rsum"] == pytest.approx(80 + 100 + 100)
    _, shown = asked(coco, tmp_path / "a.trec", "--direction", "text-to-image", "--format", "text")
    assert shown.splitlines()[0].split() == ["system", "dataset", *HEADINGS.values(), "rsum"]
    assert shown.splitlines()[1].split()[-6:] == ["80.0", "100.0", "100.0", "90.0", "100.0", "280.0"]


def test_image_to_text_counts_any_caption(coco, tmp_path):
    # Image 0 has one of its captions first and no other; image 1 has none. The id "0" is an image's and a caption's.
    lists = {"0": ["0", "5", "6"], "1": ["1", "2", "3"]}
    values = measured(coco, write(tmp_path / "b.trec", lists), "image-to-text")
    assert values["HitRate@1"] == pytest.approx(1 / 2) and values["HitRate@10"] == pytest.approx(1 / 2)
    assert values["Recall@10"] == pytest.approx((1 / 5 + 0) / 2)


def test_stored_vectors_have_their_own_judgements(coco, tmp_path):
    """The captions of `--data-dir`'s coco are others; `--dataset` overrules the run."""
    captions = {"0": {"0": "a dog", "1": "two dogs"}, "1": {"2": "a cat"}}
    vectors = [{name: np.ones(2, np.float32) for name in names} for names in (captions, ["0", "1", "2"])]
    own = f"embeddings:{write_embeddings(tmp_path / 'vectors', *vectors, captions)}"
    run = write(tmp_path / "own.trec", {"0": ["0"], "1": ["1", "0"], "2": ["1"]})
    corpus = {"name": own, "direction": "text-to-image"}
    about = RunManifest(own, own, "test", None, corpus, {"name": "d2s"}, {}, "i", 10, False)
    write_json(name_manifest(run), about.to_json())
    rows, overruled = (json.loads(asked(coco, run, *more)[1]) for more in ([], ["--dataset", "coco"]))
    values = {row["measure"]: row["value"] for row in rows}
    assert values["HitRate@1"] == pytest.approx(2 / 3) and values["HitRate@5"] == 1
    assert {row["dataset"] for row in rows} == {f"{own}/test text-to-image"}
    assert {row["dataset"] for row in overruled} == {"coco/test text-to-image"}


def test_other_runs_are_judged_by_the_commands_own_corpus():
    def judged(dataset: str) -> CorpusRef:
        corpus = CorpusRef(dataset, "val", direction="image-to-text")
        return choose_judgements(RunCard(Path("x"), "x", corpus), "coco").corpus

    assert judged("coco") == CorpusRef("coco", "val", direction="image-to-text")
    assert judged("") == judged("beir/scifact") == judged("flickr30k") == CorpusRef("coco")
    assert judged("embeddings:a/b").split == "val"


def test_a_system_with_both_directions_gets_their_sum():
    def run(direction: str, value: float) -> list[Measurement]:
        return [Measurement("r", f"coco/test {direction}", measure, "all", value) for measure in HEADINGS]

    cards = [RunCard(Path("a"), "vdr"), RunCard(Path("b"), "vdr"), RunCard(Path("c"), "other")]
    measured = [run("text-to-image", 0.5), run("image-to-text", 0.25), run("text-to-image", 0.1)]
    rows = build_caption_table(cards, measured).rows
    assert [(row[0], row[1].removeprefix("coco/test "), row[-1]) for row in rows] == [
        *(("vdr", "text-to-image", "150.0"), ("vdr", "image-to-text", "75.0"), ("other", "text-to-image", "30.0")),
        ("vdr", "both directions", "225.0"),
    ]


def asked(coco: Path, run: Path, *options: str) -> tuple[int, str]:
    result = call_command(eval.coco.command, "--run", run, "--data-dir", coco, "--format", "json", *options)
    return result.exit_code, result.stdout if result.exit_code == 0 else str(result.exception)


def test_folds_are_searched_by_themselves(coco, tmp_path):
    """Two folds of one image each: whatever the other image's place, every caption finds its image first."""
    lists = {str(caption): ["0", "1"] for caption in range(10)}
    run = write(tmp_path / "a.trec", lists)
    assert measured(coco, run, "text-to-image")["HitRate@1"] == 0.5
    assert measured(coco, run, "text-to-image", "--folds", "2")["HitRate@1"] == 1
    captions = write(tmp_path / "b.trec", {"0": [*map(str, range(10))], "1": [*map(str, range(10))]})
    assert measured(coco, captions, "image-to-text")["HitRate@5"] == 0.5
    assert measured(coco, captions, "image-to-text", "--folds", "2")["HitRate@1"] == 1
    assert "2 images, fewer than 3 folds" in asked(coco, run, "--folds", "3", "--direction", "text-to-image")[1]
    assert "--results keeps" in asked(coco, run, "--folds", "2", "--results", str(tmp_path / "r"))[1]
    source = JudgementSource(corpus=CorpusRef("coco", "test", str(coco), direction="text-to-image"))
    card = RunCard(write(tmp_path / "c.trec", {str(caption): ["1"] for caption in range(10)}), "x", hits=1)
    with pytest.raises(UsageError, match="5 lists of 1 hits hold fewer"):
        measure_subsets(card, source, ["HitRate@1"], Subsets(folds=2))


def test_only_the_first_captions_count(coco, tmp_path):
    """The fifth caption of each image finds the other image; without it all are right."""
    run = write(tmp_path / "a.trec", {str(c): [str((c // 5) ^ (c % 5 == 4))] for c in range(10)})
    assert measured(coco, run, "text-to-image")["HitRate@1"] == pytest.approx(0.8)
    assert measured(coco, run, "text-to-image", "--captions", "4")["HitRate@1"] == 1
    # As documents they are left out too: image 1 finds caption 9 first, which does not count, then caption 5.
    run = write(tmp_path / "b.trec", {"0": ["0"], "1": ["9", "0", "5"]})
    values = [measured(coco, run, "image-to-text", "--captions", count)["RR@10"] for count in ("4", "5")]
    assert values == [0.75, 1]
