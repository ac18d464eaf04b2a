"""Plans of a corpus: the parts are those of a whole reading, byte by byte, and read their own documents alone."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from byte_towers import tree
from hypothesis import given, settings
from hypothesis import strategies as st
from word_towers import model_of

from lexvl_anserini.data.dataset import Dataset, load_dataset
from lexvl_anserini.data.lines import LinePlace, read_lines, read_placed_lines
from lexvl_anserini.ground.errors import ArtefactError, DataError, UsageError
from lexvl_anserini.shards.layout import Layout, Part
from lexvl_anserini.shards.writing import UnfinishedShards, write_impacts
from lexvl_plugins.cluster.plans import CorpusPlan, plan_corpus, read_listing

SMALL = Layout(shard_size=4)


def corpus_of(folder: Path, documents: int = 23) -> Path:
    """A corpus in BEIR's layout, with a byte order mark, blank lines and Windows line ends."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ("ash", "bay", "cat", "dog", "elm")
    rows = [{"_id": f"d{n}", "text": " ".join(words[: 1 + n % 5]) + " ü" * (n % 3)} for n in range(documents)]
    ends = ("\n", "\r\n", "\n\n")
    text = "".join(json.dumps(row, ensure_ascii=False) + ends[n % 3] for n, row in enumerate(rows))
    (folder / "corpus.jsonl").write_bytes(b"\xef\xbb\xbf" + text.encode())
    return folder


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """The corpus."""
    return load_dataset(f"beir:{corpus_of(tmp_path / 'corpus')}")


def plan_of(dataset: Dataset, parts: int) -> CorpusPlan:
    """A plan with blocks of five documents."""
    return plan_corpus(dataset, model_of(), parts, layout=SMALL, block_size=5)


def encode(dataset: Dataset, output: Path, **options: Any) -> dict[str, bytes]:
    write_impacts(dataset, options.pop("model", model_of()), output, layout=SMALL, **options)
    return tree(output)


@pytest.mark.parametrize("parts", [1, 3, 4, 23])
def test_the_parts_of_a_plan_are_those_of_the_whole_corpus(parts: int, dataset: Dataset, tmp_path: Path) -> None:
    made = plan_of(dataset, parts)
    made.write(tmp_path / "plan.json")
    plan = CorpusPlan.read(tmp_path / "plan.json")
    assert plan == made and len(plan.blocks) == 5
    for number in range(parts):
        alone = encode(dataset, tmp_path / f"alone-{number}", part=Part(number, parts))
        assert encode(dataset, tmp_path / f"planned-{number}", part=plan.take_part(Part(number, parts))) == alone


def test_a_part_opens_the_corpus_at_its_own_place(dataset: Dataset, tmp_path: Path) -> None:
    """Of 23 documents in three parts, the second has documents 7 to 14: blocks 5-9 and 10-14."""
    plan = plan_of(dataset, 3)
    read: list[str] = []
    assert dataset.placed is not None
    places = dataset.placed

    def counted(place: LinePlace) -> Any:
        for here, document in places(place):
            read.append(document.doc_id)
            yield here, document

    encode(replace(dataset, placed=counted), tmp_path / "out", part=plan.take_part(Part(1, 3)))
    assert read == [f"d{n}" for n in range(5, 15)]
    packed = replace(dataset, placed=None)  # as a packed corpus
    plan = plan_of(packed, 3)
    assert plan.blocks[1].place is None
    assert encode(packed, tmp_path / "packed", part=plan.take_part(Part(1, 3))) == tree(tmp_path / "out")


def test_the_documents_of_other_corpora_are_listed_beside_the_plan(tmp_path: Path) -> None:
    """Pictures with captions, texts, and names with line separators: the listing gives the same documents."""
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(12):
        (folder / f"{number:02d}\u2028.txt").write_text(f"ash bay {number}\nü", encoding="utf-8")
    (folder / "03\u2028.jpg").write_bytes(b"never opened")
    dataset = load_dataset(f"folder:{folder}", direction="text-to-text", escape_ids=True)
    made = plan_corpus(dataset, model_of(), 3, layout=SMALL, block_size=5, listing=tmp_path / "plan.documents.jsonl")
    made.write(tmp_path / "plan.json")
    plan = CorpusPlan.read(tmp_path / "plan.json")
    assert plan == made and [block.place.lines for block in plan.blocks if block.place] == [0, 5, 10]
    assert [document for _, document in read_listing(made.listing)] == list(dataset.documents())

    def unread() -> Any:
        raise AssertionError("the corpus itself is not read")

    for number in range(3):
        alone = encode(dataset, tmp_path / f"alone-{number}", part=Part(number, 3))
        part = plan.take_part(Part(number, 3))
        assert encode(replace(dataset, documents=unread), tmp_path / f"planned-{number}", part=part) == alone
    lines = (tmp_path / "plan.documents.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "plan.documents.jsonl").write_bytes(b"".join([*lines[:6], b'{"name": 1}\n', *lines[7:]]))
    with pytest.raises(DataError, match=r"jsonl line 7: no document of a listing \(keys name\); plan the corpus again"):
        encode(dataset, tmp_path / "damaged", part=plan.take_part(Part(1, 3)))
    (tmp_path / "plan.documents.jsonl").unlink()
    with pytest.raises(DataError, match=r"plan.documents.jsonl: cannot be read"):
        encode(dataset, tmp_path / "missing", part=plan.take_part(Part(1, 3)))


def test_a_document_that_changed_since_the_plan_is_found(dataset: Dataset, tmp_path: Path) -> None:
    """In the blocks that a part reads, though outside of the part."""
    plan = plan_of(dataset, 3)
    path = tmp_path / "corpus/corpus.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"d5"', b'"x5"'))
    with pytest.raises(ArtefactError, match="the corpus changed while it was read"):
        encode(dataset, tmp_path / "out", part=plan.take_part(Part(1, 3)))
    encode(dataset, tmp_path / "last", part=plan.take_part(Part(2, 3)))


def test_a_killed_part_resumes(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(dataset, 2)
    expected = encode(dataset, tmp_path / "whole", part=plan.take_part(Part(1, 2)))
    real, calls = UnfinishedShards.add, []

    def killed(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(UnfinishedShards, "add", killed)
        with pytest.raises(KeyboardInterrupt):
            encode(dataset, tmp_path / "out", part=plan.take_part(Part(1, 2)))
    assert encode(dataset, tmp_path / "out", part=plan.take_part(Part(1, 2))) == expected


def test_another_request_than_the_plan_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    plan = plan_of(dataset, 2)
    with pytest.raises(UsageError, match="a part of 3 is wanted, the plan has 2 parts"):
        encode(dataset, tmp_path / "a", part=plan.take_part(Part(0, 3)))
    with pytest.raises(UsageError, match="shard id 2 of 2"):
        encode(dataset, tmp_path / "b", part=plan.take_part(Part(2, 2)))
    with pytest.raises(ArtefactError, match=r"the plan is of another request \(layout.shard_size: "):
        write_impacts(dataset, model_of(), tmp_path / "c", part=plan.take_part(Part(0, 2)))
    with pytest.raises(UsageError, match="24 parts of a corpus of 23 documents"):
        plan_of(dataset, 24)


def test_a_damaged_plan_is_one_line(dataset: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with pytest.raises(ArtefactError, match="plan.json"):
        CorpusPlan.read(path)
    plan = plan_corpus(dataset, model_of(), 2, layout=SMALL, block_size=5, listing=tmp_path / "listing")
    assert plan.listing is None and not (tmp_path / "listing").exists()  # a corpus with places needs none
    plan.write(path)
    whole = json.loads(path.read_text())
    numbers: list[dict[str, Any]] = [{"blocks": [["0" * 64]]}, {"block_size": 0}, {"parts": 0}]
    formats = '{"format": "lexvl-plan/9"}', '{"format": "lexvl-plan/1", "blocks": 3}'
    for content in ("{", "[]", *formats, *(json.dumps({**whole, **changes}) for changes in numbers)):
        path.write_text(content)
        with pytest.raises(ArtefactError, match="plan.json: (no plan of a corpus of this version|.*JSON)"):
            CorpusPlan.read(path)


# No line is refused: a return before a tab, or the begin of a packed file.
REFUSED = re.compile(rb"\n|\r.*\t|\x1f\x8b|\x28\xb5\x2f\xfd", re.DOTALL)


@given(st.lists(st.binary(max_size=6).filter(lambda line: not REFUSED.search(line)), max_size=12), st.integers(0, 11))
@settings(max_examples=100)
def test_lines_from_a_place_are_those_of_the_whole_file(lines: list[bytes], start: int) -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        path = Path(folder) / "lines"
        path.write_bytes(b"\n".join(lines))
        placed = list(read_placed_lines(path))
        assert [line for _, line in placed] == list(read_lines(path))
        if start < len(placed):
            assert list(read_placed_lines(path, placed[start][0])) == placed[start:]
