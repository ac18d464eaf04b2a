"""VQA v2's questions about images, as its authors publish them: two JSON files a split, beside the images of COCO.

    FOLDER/v2_OpenEnded_mscoco_train2014_questions.json     questions: image_id, question, question_id
    FOLDER/v2_mscoco_train2014_annotations.json             annotations: question_id, answer_type, answers of 10 people
    FOLDER/train2014/COCO_train2014_000000000009.jpg        the images; also found in the data folder's coco/

The same of val2014. The answers to the test questions are not published.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lexvl_anserini.data.dataset import data_root
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.files import read_json
from lexvl_anserini.ground.machine import expand_path

SPLITS = ("train2014", "val2014")
QUESTIONS, ANNOTATIONS = "v2_OpenEnded_mscoco_{}_questions.json", "v2_mscoco_{}_annotations.json"
IMAGE = "COCO_{}_{:012d}.jpg"

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
NUMBERS = {"none": "0", **{word: str(number) for number, word in enumerate(WORDS)}}
ARTICLES = frozenset({"a", "an", "the"})


class VqaQuestion(NamedTuple):
    """A question about an image: the file of the image, the kind of its answer, and the score of each answer."""

    image: str
    text: str
    kind: str
    scores: Mapping[str, float]


def normalise_answer(answer: str) -> str:
    """An answer as VQA's evaluation compares it: lower case, digits for numbers, no articles, no punctuation.

    >>> normalise_answer("The two dogs.")
    '2 dogs'
    """
    words = re.sub(r"[^\w\s'/:.-]|(?<!\d)\.|\.(?!\d)", " ", answer.lower()).split()
    return " ".join(NUMBERS.get(word, word) for word in words if word not in ARTICLES)


def score_answers(answers: Sequence[str]) -> dict[str, float]:
    """VQA's accuracy of each given answer: min(n / 3, 1), n the people who give it, without one person, each in turn.

    The mean over these choices of nine people is what VQA's evaluation reports.
    """
    people = len(answers)
    return {
        answer: (count * min((count - 1) / 3, 1) + (people - count) * min(count / 3, 1)) / people
        for answer, count in Counter(map(normalise_answer, answers)).items()
    }


def find_folder(corpus: str | None, data_dir: str | None) -> Path:
    """The folder of the files: the user's, or vqa-v2 in the data folder."""
    return expand_path(corpus) if corpus else data_root(data_dir) / "vqa-v2"


def list_files(folder: Path, split: str, data_dir: str | None) -> tuple[Path, Path, Path]:
    """The files of questions and of annotations of a split, and the folder of its images."""
    beside = folder / split
    images = beside if beside.is_dir() else data_root(data_dir) / "coco" / split
    return folder / QUESTIONS.format(split), folder / ANNOTATIONS.format(split), images


def read_questions(folder: Path, split: str, data_dir: str | None = None) -> list[VqaQuestion]:
    """The questions of a split, in the order of their file; each needs its annotation."""
    questions, annotations, images = list_files(folder, split, data_dir)
    posed, answered = (read_json(path, "questions of VQA v2", DataError) for path in (questions, annotations))
    where = annotations
    try:
        known = {entry["question_id"]: entry for entry in answered["annotations"]}
        where = questions
        read = list(_join_answers(posed["questions"], known, images, split))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else "another structure"
        raise DataError(f"{where}: not as VQA v2's ({why}); expected the file of visualqa.org") from error
    if not read:
        raise DataError(f"{questions}: no question in it")
    return read


def _join_answers(
    entries: Sequence[Mapping[str, Any]], known: Mapping[Any, Mapping[str, Any]], images: Path, split: str
) -> Iterator[VqaQuestion]:
    for entry in entries:
        if entry["question_id"] not in known:
            raise DataError(f"question {entry['question_id']} of {split} has no annotation; give both files of a split")
        annotation = known[entry["question_id"]]
        image = images / IMAGE.format(split, entry["image_id"])
        scores = score_answers([each["answer"] for each in annotation["answers"]])
        yield VqaQuestion(str(image), str(entry["question"]), str(annotation["answer_type"]), scores)
