"""Topics in halves and folds: every judged topic once, the same draw as tuning, and files that the line reads again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eval.analyses.split import command, drawn_parts
from lexvl_anserini.data.topics import read_qrels, read_topics
from lexvl_anserini.ground.errors import ArtefactError, DataError, UsageError
from lexvl_anserini.ground.records import Qrel, Topic
from tests.invoking import invoked

TEXTS = {"q1": "a dog", "ü2": "naïve\ttext", "q3": "", "q4": "sea", "q5": "cat", "unjudged": "no"}
QRELS = "".join(f"{query_id}\t0\td{query_id}\t{relevance}\n" for relevance, query_id in enumerate([*TEXTS][:5]))


@pytest.fixture
def files(tmp_path: Path) -> tuple[Any, ...]:
    lines = [json.dumps({"_id": query_id, "text": text}) for query_id, text in TEXTS.items()]
    lines.append(json.dumps({"_id": "picture", "image": "a.jpg"}))
    (tmp_path / "q.jsonl").write_text("\n".join(lines))
    (tmp_path / "q.qrels").write_text(QRELS + "picture\t0\td1\t1\nlost\t0\td1\t1\n")
    return "--topics", tmp_path / "q.jsonl", "--qrels", tmp_path / "q.qrels"


def test_parts_by_hand() -> None:
    # SHA-256 of "1:a" begins with 41, of "1:b" with 6f, of "1:c" with b8.
    assert drawn_parts("cab", "x", 1, 3) == [["a"], ["b"], ["c"]]
    assert drawn_parts("abcab", "x", 1) == [["a", "b"], ["c"]]
    assert drawn_parts("abc", "x", 1, 2) == [["a", "c"], ["b"]]
    assert len({tuple(drawn_parts("abcdef", "x", seed)[0]) for seed in range(20)}) > 1
    with pytest.raises(DataError, match="x: 1 topics have judgements; two halves need 2 or more"):
        drawn_parts("aa", "x", 1)
    with pytest.raises(DataError, match="x: 2 topics have judgements; 3 folds need 3 or more"):
        drawn_parts("ab", "x", 1, 3)


@pytest.mark.parametrize(("options", "name", "sizes"), [((), "half", [3, 3]), (("--folds", 4), "fold", [2, 2, 1, 1])])
def test_every_judged_topic_is_in_one_part(
    files: tuple[Any, ...], tmp_path: Path, options: Any, name: str, sizes: list[int]
) -> None:
    shown = json.loads(invoked(command, *files, *options, "--output", tmp_path / "out", "--format", "json"))
    assert (shown["topics"], shown["without_judgements"]) == (6, 1)
    assert shown["parts"] == ", ".join(map(str, sizes))
    topics: list[Topic] = []
    qrels: list[Qrel] = []
    for number, size in enumerate(sizes, start=1):
        part = list(read_topics(tmp_path / "out" / f"{name}{number}.queries.jsonl"))
        judged = list(read_qrels(tmp_path / "out" / f"{name}{number}.qrels"))
        assert len(part) == size and {q.query_id for q in judged} == {topic.query_id for topic in part}
        topics, qrels = topics + part, qrels + judged
    assert len(list((tmp_path / "out").iterdir())) == 2 * len(sizes)
    picture = Topic("picture", None, str(tmp_path / "a.jpg"))
    expected = [Topic(query_id, text) for query_id, text in TEXTS.items() if query_id != "unjudged"]
    assert sorted(topics, key=str) == sorted([*expected, picture], key=str)
    assert sorted(qrels) == sorted(q for q in read_qrels(files[3]) if q.query_id != "lost")


def test_the_draw_is_repeated_and_an_output_stays(files: tuple[Any, ...], tmp_path: Path) -> None:
    for folder in ("one", "two"):
        invoked(command, *files, "--seed", 7, "--output", tmp_path / folder)
    contents = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("one", "two")]
    assert contents[0] == contents[1]
    with pytest.raises(ArtefactError, match="one: exists; --overwrite replaces it"):
        invoked(command, *files, "--output", tmp_path / "one")
    invoked(command, *files, "--folds", 3, "--output", tmp_path / "one", "--overwrite")
    assert {path.name[:4] for path in (tmp_path / "one").iterdir()} == {"fold"}
    with pytest.raises(UsageError, match=r"q\.jsonl: topics of a file have no judgements; give --qrels"):
        invoked(command, *files[:2], "--output", tmp_path / "three")
    assert not (tmp_path / "three").exists()


def test_topics_of_a_dataset(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    invoked(command, "--topics", "demo/test", "--folds", 5, "--output", tmp_path / "demo")
    assert len(list((tmp_path / "demo").iterdir())) == 10 and "--remove-query" not in caplog.text
