"""A word that is taught by pictures: its ridge, its postings, what is searched, exported and removed; hostile names."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attack.faults import Ended, faults
from PIL import Image
from scipy import sparse
from word_towers import WordTower

from eval.report.answers import strips_of_queries, with_maps
from lexvl_anserini.encoders.loading import load_encoder, load_encoder_of
from lexvl_anserini.encoders.ridge import Ridge
from lexvl_anserini.encoders.taught import (
    TAUGHT,
    TaughtDocuments,
    TaughtEntry,
    TaughtQueries,
    TaughtWords,
    pattern_of,
    term_of,
)
from lexvl_anserini.engines.index_folder import read_report
from lexvl_anserini.engines.lucene.fields import metadata_of
from lexvl_anserini.engines.lucene.vectors import read_vectors
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.files import write_json
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.ground.quantise import quantised
from lexvl_anserini.localise import command as localise
from lexvl_anserini.photos import command as photos
from lexvl_anserini.photos import pictures_in
from lexvl_anserini.searching import teach
from lexvl_anserini.searching.index import Index
from lexvl_anserini.searching.searcher import Searcher
from lexvl_anserini.searching.shared_terms import explain
from lexvl_anserini.searching.teach import command

WORDS = {
    "miso": {"bias": -0.25, "coefficients": {"ash": 500, "bay": -1000}},
    "aunt_eve": {"bias": 0.0, "coefficients": {}},
}


def words_of(scale: float = 10.0, largest: int | None = 255) -> TaughtWords:
    own = WordTower.vocabulary
    return TaughtWords(own, TaughtEntry(vocabulary=own.digest, scale=scale, largest=largest, words={**WORDS}))


def test_the_ridge_in_numbers() -> None:
    """Others (0, 0), (2, 0), (0, 2), (2, 2): mean (1, 1), S the identity, so l = 1 and c = (m - (1, 1)) / 2."""
    others = sparse.csr_matrix([[0.0, 0], [2, 0], [0, 2], [2, 2]])
    ridge = Ridge(others, penalty=1.0)
    assert ridge.mean.tolist() == [1, 1] and ridge.deviation.tolist() == [1, 1]
    examples = sparse.csr_matrix([[5.0, 1], [3, 3]])  # mean (4, 2)
    assert np.allclose(ridge.coefficients(examples), [1.5, 0.5])
    # Without (5, 1): c = (1, 1), the others score 0 to 4, their mean is 2 and their deviation the root of 2.
    first, second = ridge.without_each(examples)
    assert (first.share, first.distance) == (1.0, pytest.approx(4 / 2**0.5))
    # Without (3, 3): c = (2, 0); (3, 3) scores 6, the others 0 or 4.
    assert (second.share, second.distance) == (1.0, pytest.approx(2.0))


def test_the_ridge_is_that_of_the_whole_matrix() -> None:
    rng = np.random.default_rng(3)
    others, examples = rng.random((7, 12)), rng.random((3, 12))
    centred = others - others.mean(axis=0)
    covariance = centred.T @ centred / 7
    level = 2.0 * np.trace(covariance) / 12
    expected = np.linalg.solve(covariance + level * np.eye(12), examples.mean(axis=0) - others.mean(axis=0))
    ridge = Ridge(sparse.csr_matrix(others), penalty=2.0)
    assert np.allclose(ridge.coefficients(sparse.csr_matrix(examples)), expected)


def test_impacts_of_a_word_are_sums_of_integers() -> None:
    # "miso": 0.5 ash - bay - 0.25 x 10, rounded half up, not below 0, at most 255.
    own = sparse.csr_matrix(np.array([[12, 0], [12, 3], [255, 0], [16, 1], [0, 0]]), shape=(5, 2))
    own = sparse.hstack([own, sparse.csr_matrix((5, 6), dtype=np.int64)], "csr")
    assert words_of().impacts(own)[:, 0].tolist() == [4, 1, 125, 5, 0]
    assert words_of(largest=100).impacts(own)[:, 0].tolist() == [4, 1, 100, 5, 0]
    assert words_of().with_words(own).shape == (5, 10)


def test_a_document_that_is_encoded_later_has_the_same_impacts() -> None:
    taught, texts = words_of(), ["ash ash ash bay", "ash " * 40, "dog", ""]
    later = quantised(TaughtDocuments(WordTower(), taught).weights(texts), 10.0, 255).impacts
    before = taught.with_words(quantised(WordTower().weights(texts), 10.0, 255).impacts)
    assert (later != before).nnz == 0 and later[:, 8].toarray().ravel().tolist() == [0, 98, 0, 0]


def test_a_query_with_a_name() -> None:
    side = TaughtQueries(WordTower(), words_of())
    rows = side.weights(["Miso ash ash", "misos ash", "AUNT  eve and miso", "", "cat"]).toarray()
    assert side.vocabulary[8:] == ("miso", "aunt_eve")
    # The largest weight of the rest: ash twice is 1; a name alone has 1.
    assert rows[0].tolist() == [1, 0, 0, 0, 0, 0, 0, 0, 1, 0]
    assert rows[1, 8] == 0 and rows[1, 0] == 0.5
    assert rows[2, 8:].tolist() == [1, 1]
    assert not rows[3].any() and rows[4].tolist() == [0, 0, 0.5, 0, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    "name,text,found",
    [
        ("Miso", "Where is MISO?", True),
        ("Miso", "misool", False),
        ("みそ", "これはみそです", True),
        ("Łódź", "w łódź", True),
        ('O\'Neil "x"', 'see o\'neil  "x" now', True),
        ("<b>x</b>", "a <B>x</b>", True),
        (".*", "anything", False),
    ],
)
def test_names_in_texts(name: str, text: str, found: bool) -> None:
    if name == ".*":
        with pytest.raises(UsageError, match="with a letter or digit"):
            term_of(name)
        return
    assert bool(pattern_of(term_of(name)).search(text)) == found


@pytest.mark.parametrize("name", ["", " ", "x" * 65, "\ud800a", "a\x00b"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(UsageError):
        term_of(name)


def painted(folder: Path, **colours: tuple[int, int, int]) -> Path:
    folder.mkdir(exist_ok=True)
    for number, (name, colour) in enumerate(colours.items()):
        picture = Image.new("RGB", (64, 64), (220, 220, 220))
        picture.paste(colour, (8 + number % 5, 8, 40, 40))
        picture.save(folder / f"{name}.png")
    return folder


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of 16 colours in `pics`, their album in `lexvl-photos/pics`, and four red ones in `red`."""
    root = tmp_path_factory.mktemp("teach")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEXVL_DATA", str(root / "memory"))
        patch.chdir(root)
        painted(root / "pics", **{f"p{n:02}": (n * 5, 250 - n * 9, 90 + n * 7) for n in range(16)})
        painted(root / "red", **{f"r{n}": (240 - n, 10 + n, 5 * n) for n in range(4)})
        photos(folder=Path("pics"), checkpoint="demo-vdr", device="cpu")
    return root


@pytest.fixture
def run(tmp_path: Path, album: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Callable[..., str]:
    """`run(...)` calls `teach` in a copy of the album, and returns what it prints."""
    shutil.copytree(album / "lexvl-photos", tmp_path / "lexvl-photos")
    monkeypatch.setenv("LEXVL_DATA", str(tmp_path / "memory"))
    monkeypatch.chdir(tmp_path)
    index = Path("lexvl-photos/pics")

    def called(*arguments: Any, **options: Any) -> str:
        word, pictures = (arguments[0], list(arguments[1:])) if arguments else (None, None)
        capsys.readouterr()
        command(**{"index": index, "word": word, "pictures": pictures, "device": "cpu", **options})
        return str(capsys.readouterr().out)

    return called


RED = [f"r{n}.png" for n in range(4)]
INDEX = Path("lexvl-photos/pics/index")


def state(index: Path = INDEX) -> tuple[Any, ...]:
    """What the index holds and what made it."""
    manifest, vectors = read_manifest(index), read_vectors(index)
    held = {**manifest.to_json(), "layout": None, "shards": None}
    return (
        held,
        vectors.ids,
        vectors.terms,
        vectors.impacts.toarray().tolist(),
        metadata_of(index, read_report(index).fields),
    )


def test_teach_search_export_remove(run: Callable[..., str], album: Path, tmp_path: Path) -> None:
    before, red = state(), [album / "red" / name for name in RED]
    assert "miso: taught by 4 pictures (held out" in run("Miso", *red, output=Path("miso.json"))
    taught = state()
    assert taught[1] == before[1] and taught[4] == before[4] and (tmp_path / "miso.json").stat().st_size < 10_000
    assert not (INDEX.parent / "index.lexvl.room").exists()
    (INDEX.parent / "index.teach").mkdir()  # a user's
    run()
    (INDEX.parent / "index.teach").rmdir()
    manifest = read_manifest(INDEX)
    assert manifest.encoder.options[TAUGHT]["words"]["miso"]["pictures"] and "1 taught words" in run()
    # A word like others: searched, explained, and drawn.
    index = Index(INDEX, manifest)
    hits = index.search("Miso", 3)
    [best, *_] = explain(INDEX, "miso", hits.doc_ids)
    assert [term.term for term in best.terms] == ["miso"] and best.score == hits.scores[0]
    model = load_encoder_of(manifest.encoder, vocabulary=manifest.vocabulary_digest)
    strips = strips_of_queries(pictures_in(album / "pics"), index, model, ["a red miso"], 2)
    drawn = with_maps(strips, model)
    assert drawn[0].cells[0].item.image is not None and strips[0].cells[0].terms
    # Twice, as a term, or removed twice: refused.
    with pytest.raises(UsageError, match="'miso' is taught already"):
        run("MISO", *red)
    with pytest.raises(UsageError, match="'red' is a term of the encoder already"):
        run("Red", *red)
    assert "miso: removed" in run(remove="Miso") and state() == before
    with pytest.raises(UsageError, match="'miso' is no taught word; taught: none"):
        run(remove="miso")
    # From the file, the index is what pictures made it.
    run(source=Path("miso.json"))
    assert state() == taught
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ArtefactError, match="no taught word"):
        run(source=Path("bad.json"))


def test_maps_of_a_taught_word(run: Callable[..., str], album: Path, tmp_path: Path, capsys: Any) -> None:
    """The map of a word that is 0.7 of "red" is 0.7 of its map."""
    encoder = teach.encoder_of(teach.read_taught(INDEX))
    word = {"bias": 0.0, "coefficients": {"red": 700}, "pictures": [], "held_out": 0.0}
    write_json(Path("miso.json"), {"format": teach.FORMAT, "name": "aunt_miso", "encoder": encoder, "word": word})
    run(source=Path("miso.json"))

    def maps(*queries: str, **options: Any) -> list[Any]:
        picture = [str(album / "red" / RED[0])]
        localise(image=picture, query=list(queries), index=INDEX.parent, device="cpu", style="json", **options)
        return [json.loads(line)["grid"] for line in capsys.readouterr().out.splitlines()]

    red, taught, both = maps("red", "Aunt Miso", "aunt miso, red", values="activation")
    assert np.max(red) > 0 and np.allclose(taught, 0.7 * np.array(red), atol=1e-5)
    assert np.allclose(both, 0.85 * np.array(red), atol=1e-5)
    assert len(maps("red")) == 1
    with pytest.raises(UsageError, match="a taught word is a sum of activations, without logits"):
        maps("aunt miso")
    with pytest.raises(UsageError, match="--index has its encoder"):
        maps("red", checkpoint="demo-vdr")


def test_new_pictures_get_the_word(run: Callable[..., str], album: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """A picture has the same impact of the word whether it comes before the word or after."""
    red = [album / "red" / name for name in RED]
    shutil.copytree(album / "pics", tmp_path / "pics")
    shutil.rmtree("lexvl-photos")
    photos(folder=Path("pics"), checkpoint="demo-vdr", device="cpu")
    run("Miso", *red, output=Path("miso.json"))
    shutil.copy(red[0], tmp_path / "pics/new.png")
    photos(folder=Path("pics"), checkpoint="demo-vdr", device="cpu")
    after = state()
    run(remove="miso")
    run(source=Path("miso.json"))
    assert state()[1:] == after[1:] and after[1][0] == "new.png"
    assert read_vectors(INDEX).impacts[0, after[2].index("miso")] > 0


@pytest.fixture
def killed(run: Callable[..., str], tmp_path: Path) -> Callable[[int], list[str]]:
    """Teaches a word from a file, killed at a call that changes a file (0: never), and again; returns the calls.

    A killed process leaves the index as it was, or with the word, and the same command ends as one that was not killed.
    """
    albums, before = tmp_path / "lexvl-photos", state()
    shutil.copytree(albums, tmp_path / "untouched")
    word = {"bias": 0.5, "coefficients": {"red": 700}, "pictures": [], "held_out": 0.0}
    encoder = teach.encoder_of(teach.read_taught(INDEX))
    write_json(Path("miso.json"), {"format": teach.FORMAT, "name": "miso", "encoder": encoder, "word": word})
    run(source=Path("miso.json"))
    after = state()
    assert set(after[2]) - set(before[2]) == {"miso"} and "1 taught words" in run()

    def called(number: int) -> list[str]:
        shutil.rmtree(albums)
        shutil.copytree(tmp_path / "untouched", albums)
        with suppress(Ended), faults(albums, number, after=number % 2 == 0) as counted:
            run(source=Path("miso.json"))
        found = state()
        assert found == after or (number and found == before), (number, counted.calls[-1])
        with suppress(UsageError):  # it is taught already
            run(source=Path("miso.json"))
        assert state() == after
        with Searcher(INDEX) as searcher:
            assert searcher.engine.documents == len(after[1])
            searcher.verified()
        names = {path.name for path in INDEX.parent.iterdir()}
        assert names == {path.name for path in (tmp_path / "untouched/pics").iterdir()}, (number, counted.calls[-1])
        return counted.calls

    return called


def test_killed_while_a_word_is_written(killed: Callable[[int], list[str]]) -> None:
    calls = killed(0)
    [swap] = [number for number, call in enumerate(calls, start=1) if call.startswith("exchange")]
    for number in (5, swap - 1, swap, swap + 1, len(calls)):
        killed(number)


@pytest.mark.heavy
def test_killed_anywhere_while_a_word_is_written(killed: Callable[[int], list[str]]) -> None:
    for number in range(1, len(killed(0)) + 1):
        killed(number)


def test_pictures_that_differ_or_are_one(run: Callable[..., str], album: Path, caplog: Any) -> None:
    caplog.set_level("WARNING")
    assert "1 pictures (not held out)" in run("single_x", album / "red" / RED[0])
    assert "single_x: taught by 1; three to ten pictures are better" in caplog.text
    caplog.clear()
    run("mixed", *sorted((album / "pics").iterdir())[::4], album / "red" / RED[0])
    assert "mixed: a picture that is left out scores above" in caplog.text
    assert "2 taught words" in run()


def test_hostile_names(run: Callable[..., str], album: Path) -> None:
    red = [album / "red" / name for name in RED]
    name = "\"><script>alert('1')</script>"
    run(name, *red)
    hits = Index(INDEX, read_manifest(INDEX)).search(name.upper(), 2)
    explained = explain(INDEX, name, hits.doc_ids)
    assert [[term.term for term in each.terms] for each in explained] == [[name]] * 2


def test_arguments_that_are_refused(run: Callable[..., str], album: Path, tmp_path: Path) -> None:
    before, red = state(), album / "red" / RED[0]
    (tmp_path / "few").mkdir()
    for arguments, options, match in (
        (("Miso",), {}, "name three to ten of it"),
        (("Miso", tmp_path / "no.png"), {}, "no such picture"),
        ((), {"output": Path("x.json")}, "name the word to export"),
        (("Miso", red), {"remove": "x"}, "--remove takes neither"),
        (("Miso",), {"output": Path("x.json")}, "'miso' is no taught word"),
        (("...", red), {}, "with a letter or digit"),
    ):
        with pytest.raises(UsageError, match=match):
            run(*arguments, **options)
    with pytest.raises(ArtefactError, match="no such index"):
        run("Miso", red, index=Path("nowhere"))
    assert state() == before


def test_few_documents(album: Path) -> None:
    with pytest.raises(UsageError, match="the index has 2 documents besides"):
        teach.fit(
            sparse.csr_matrix(np.eye(3, 8, dtype=np.int64)),
            sparse.csr_matrix(np.eye(1, 8, dtype=np.int64)),
            WordTower.vocabulary,
            1.0,
        )


def test_an_encoder_of_other_terms_is_refused() -> None:
    model = load_encoder("vdr-crossmodal", "demo-vdr", device="cpu")
    from lexvl_anserini.encoders.taught import with_taught

    with pytest.raises(ArtefactError, match="taught words of the vocabulary"):
        with_taught(model, {"vocabulary": "other", "scale": 1.0, "words": {**WORDS}})
