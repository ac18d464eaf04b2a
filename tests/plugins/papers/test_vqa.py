"""The probe of visual question answering: VQA's files and accuracy, and the probe on drawn scenes beside another's."""

import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
from tiny_encoders import made_stair
from world.catalogue import world
from world.drawing import draw
from world.pictures import png
from world.scenes import Scene, make_scene

from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import DataError
from lexvl_plugins.papers import vqa
from lexvl_plugins.papers.prepared import Workplace
from lexvl_plugins.papers.questions import normalise_answer, read_questions, score_answers
from lexvl_plugins.papers.tables import make_plan
from tests.plugins.papers.test_reproduce_vectors import cells_of, table_of


def ask(scene: Scene, chance: random.Random) -> list[tuple[str, str, str]]:
    """Questions about a scene: the text, the kind of the answer, the answer."""
    subject, shown = scene.subject, {thing.kind for thing in (scene.subject, scene.landmark, scene.backdrop) if thing}
    absent = chance.choice([kind for kind in sorted(world().kinds) if kind not in shown])
    questions = [
        (f"is there a {subject.kind}?", "yes/no", "yes"),
        (f"is there a {absent}?", "yes/no", "no"),
        (f"how many of {subject.kind} are there?", "number", str(subject.count)),
        ("is it day or night?", "other", scene.time),
    ]
    return (
        [*questions, (f"what colour is the {subject.kind}?", "other", subject.colour)] if subject.colour else questions
    )


def write_scenes(folder: Path, train: int, test: int) -> Path:
    """Drawn scenes and questions about them in VQA v2's layout; ten people give one answer."""
    for split, own, number in (("train2014", "val", train), ("val2014", "test", test)):
        (folder / split).mkdir(parents=True)
        asked, answered = [], []
        chance = random.Random(split)
        for image in range(number):
            scene = make_scene(own, image)
            (folder / split / f"COCO_{split}_{image:012d}.jpg").write_bytes(png(draw(scene, 64)))
            for place, (text, kind, answer) in enumerate(ask(scene, chance)):
                both = {"image_id": image, "question_id": 10 * image + place}
                answers = [{"answer": answer, "answer_id": person} for person in range(1, 11)]
                asked.append({"question": text, **both})
                answered.append({"answer_type": kind, "multiple_choice_answer": answer, "answers": answers, **both})
        (folder / f"v2_OpenEnded_mscoco_{split}_questions.json").write_text(json.dumps({"questions": asked}))
        (folder / f"v2_mscoco_{split}_annotations.json").write_text(json.dumps({"annotations": answered}))
    return folder


def test_accuracy_by_hand():
    """Of ten people three say 2: without one of them 2 remain (2/3, three times), else 3 (1, seven times), so 0.9."""
    scores = score_answers(["2", "two", "The 2.", *["blue dog"] * 6, "yes"])
    assert scores == pytest.approx({"2": 0.9, "blue dog": 1.0, "yes": 0.3})
    assert score_answers(["no"] * 2 + ["yes"] * 8) == pytest.approx({"no": 0.6, "yes": 1.0})
    pairs = {"A cat!": "cat", "10.5": "10.5", "None": "0", "hot-dog, an apple": "hot-dog apple", "9/11": "9/11", "": ""}
    assert {answer: normalise_answer(answer) for answer in pairs} == pairs


def test_targets_and_answers_by_hand():
    """The most frequent best answers are known; a question's score is that of the answer that is chosen."""
    rows = [("a", {"yes": 1.0, "no": 0.3}), ("b", {"no": 1.0}), ("c", {"yes": 0.9}), ("d", {"red": 1.0, "blue": 1.0})]
    questions = [vqa.VqaQuestion("i", text, "other", scores) for text, scores in rows]
    assert vqa.choose_answers(questions) == ["yes", "blue", "no"] and vqa.choose_answers(questions, 1) == ["yes"]
    table = vqa.tabulate_scores(questions, ["yes", "no"])
    assert table.toarray() == pytest.approx(np.array([[1, 0.3], [0, 1], [0.9, 0], [0, 0]]))
    assert vqa.pick_scores(table, np.array([1, 1, 0, 0])) == pytest.approx([0.3, 1, 0.9, 0])


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scenes(tmp_path_factory.mktemp("vqa"), 150, 80)


def test_the_probe_answers_as_well_as_another_network_of_its_shape(drawn):
    """scikit-learn's MLP of the same layers, over the same features: within 5 points; ours is far above chance."""
    from sklearn.neural_network import MLPClassifier
    from threadpoolctl import threadpool_limits

    model = load_encoder("dense-crossmodal", "demo-dense", device="cpu", direction="text-to-image")
    train, test = (read_questions(drawn, split) for split in ("train2014", "val2014"))
    learned, tested = (vqa.encode_questions(model, questions, 64) for questions in (train, test))
    answers = vqa.choose_answers(train)
    targets, scores = (vqa.tabulate_scores(questions, answers) for questions in (train, test))
    ours = vqa.pick_scores(scores, vqa.predict(vqa.train_probe(learned, targets, "cpu", 128), tested))
    other = MLPClassifier((128,), alpha=0, early_stopping=True, batch_size=vqa.BATCH, random_state=1)
    with threadpool_limits(1):  # more of them take ten times as long for such small layers
        other.fit(learned.take(np.arange(len(train))), targets.toarray().argmax(axis=1))
    theirs = vqa.pick_scores(scores, other.predict(tested.take(np.arange(len(test)))))
    assert ours.mean() == pytest.approx(theirs.mean(), abs=0.05)
    least = {"yes/no": 0.65, "number": 0.55, "other": 0.45}  # one answer to all: 0.50, 0.66, 0.23
    for kind, share in least.items():
        own = np.array([question.kind == kind for question in test])
        assert ours[own].mean() > share, kind


VQA = """\
    columns: ["vqa vqa-v2 [yes/no, number, other, all]"]
    rows: {STAIR: 67.8 34.6 39.6 50.6}
    systems: {STAIR: {encoder: stair}}
"""


def test_a_row_measures_the_kinds_and_their_mean(golden, tmp_path, drawn):
    """Over a lexical model; `--limit` takes so many images of each split."""
    table, weights = table_of(tmp_path, VQA), str(made_stair(golden, tmp_path))
    bare = Workplace(tmp_path / "out", str(tmp_path / "data"), {"STAIR": weights}, device="cpu")
    assert {cell.reason for cell in cells_of(table, bare)} == {"missing: vqa-v2"}
    place = Workplace(tmp_path / "out", None, {"STAIR": weights}, {"vqa-v2": str(drawn)}, limit=24, device="cpu")
    assert make_plan(table, place).runs == 4
    *kinds, every = cells_of(table, place)
    assert {cell.reason for cell in kinds} == {"other weights, --limit 24"}
    questions = vqa.limit_images(read_questions(drawn, "val2014"), 24)
    shares = [sum(question.kind == kind for question in questions) for kind in ("yes/no", "number", "other")]
    assert every.measured == pytest.approx(np.average([cell.measured for cell in kinds], weights=shares))
    assert 0 < every.measured < 100 and cells_of(table, place)[-1] == every


@pytest.mark.parametrize(
    "name,content,message",
    [
        ("v2_OpenEnded_mscoco_val2014_questions.json", {}, "questions.json: not as VQA v2's \\('questions' is missing"),
        ("v2_OpenEnded_mscoco_val2014_questions.json", {"questions": []}, "no question in it"),
        ("v2_OpenEnded_mscoco_val2014_questions.json", [], "is a JSON list, expected an object"),
        (
            "v2_mscoco_val2014_annotations.json",
            {"annotations": []},
            "question 0 of val2014 has no annotation",
        ),
        ("v2_mscoco_val2014_annotations.json", {"annotations": [3]}, "annotations.json: not as VQA v2's \\(another"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path, name, content, message):
    folder = write_scenes(tmp_path / "vqa", 1, 1)
    (folder / name).write_text(json.dumps(content))
    with pytest.raises(DataError, match=message) as caught:
        read_questions(folder, "val2014")
    assert "\n" not in str(caught.value)


def test_one_image_is_too_few_to_learn_from(tmp_path):
    questions = read_questions(write_scenes(tmp_path, 1, 1), "train2014")
    vectors = vqa.PairFeatures(*(np.ones((1, 2), np.float32),) * 2, *(np.zeros(len(questions), np.int64),) * 2)
    with pytest.raises(DataError, match=re.escape("questions about 1 images, expected at least 2")):
        vqa.train_probe(vectors, vqa.tabulate_scores(questions, vqa.choose_answers(questions)))
