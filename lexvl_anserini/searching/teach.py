"""The command `lexvl teach`: a new term from a few pictures, whose postings follow from those of an index.

    read the index -> encode the pictures -> fit (encoders/ridge.py) -> write the index again, with the term's postings

No picture of the index is encoded. The words are an option of the encoder in the index's manifest (encoders/taught.py),
so that whatever loads this encoder has them.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import orjson
import typer

from lexvl_anserini import cli
from lexvl_anserini.data.entries import printable
from lexvl_anserini.encoders.ridge import MOST_OTHERS, Ridge
from lexvl_anserini.encoders.taught import (
    TAUGHT,
    UNIT,
    TaughtEntry,
    TaughtWord,
    TaughtWords,
    checked_word,
    side_of,
    term_of,
    without_taught,
)
from lexvl_anserini.engines.index_folder import in_album, index_manifest, read_report
from lexvl_anserini.engines.lucene.fields import TEXT, metadata_of
from lexvl_anserini.engines.lucene.writing import IndexOptions
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.files import exclusive, file_sha256, read_json, room_of, write_json
from lexvl_anserini.ground.manifest import Counts, EncoderRef, Manifest, expect_lexical
from lexvl_anserini.ground.quantise import quantised
from lexvl_anserini.ground.vocabulary import Vocabulary
from lexvl_anserini.searching.building import build_index, built_engine
from lexvl_anserini.searching.searcher import EncoderChanges
from lexvl_anserini.searching.unpacking import OwnVectors, own_vectors, write_own_shards

if TYPE_CHECKING:
    from scipy import sparse

# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("lexvl_anserini.searching.teach")

FORMAT = "lexvl-taught/1"

# Pictures from which a word is usually learnt, and pictures of the index that it must be told from.
LEAST, FEWEST_OTHERS = 3, 10

# Held-out figures below this come from pictures that differ more than those of a thing do (docs/photo-models.md).
HELD_OUT = 0.75

# A word keeps this many coefficients: the file of a word has some kB.
COEFFICIENTS = 256

# Standard deviations above the mean score of the index from which a picture has the word.
FLOOR = 1.0


class TaughtIndex(NamedTuple):
    """An index as teaching reads it.

    own    the vectors without taught words
    entry  the taught words
    """

    folder: Path
    manifest: Manifest
    own: OwnVectors
    entry: TaughtEntry


@dataclass(frozen=True)
class Fitted:
    """A word that is fitted, and how well each picture is found by a word of the other pictures.

    held_out  per picture the share of the index's other documents that score less; empty for a single picture
    """

    word: TaughtWord
    held_out: Sequence[float]


def read_taught(folder: Path) -> TaughtIndex:
    """Reads an index.

    Raises:
        UsageError: no impact index of one encoder, or one that holds texts too.
        ArtefactError: no index.
    """
    manifest = index_manifest(folder)
    expect_lexical(folder, manifest.kind, "a word is a term of an impact index")
    if manifest.fields:
        raise UsageError(f"{folder}: an index of the fields {', '.join(manifest.fields)}; teach the index of one field")
    built_engine(folder, "teach")
    side = side_of(manifest.quantiser)
    own = own_vectors(folder, manifest)
    option = manifest.encoder.options.get(TAUGHT)
    size = len(own.vocabulary) - len(option["words"] if option else ())
    vocabulary = Vocabulary(own.vocabulary.terms[:size])
    fresh: dict[str, Any] = {"vocabulary": vocabulary.digest, "scale": side.scale, "largest": side.largest, "words": {}}
    return TaughtIndex(
        folder, manifest, OwnVectors(own.ids, own.impacts[:, :size], vocabulary), TaughtEntry(option or fresh)
    )


def with_words(index: TaughtIndex, words: dict[str, Any]) -> sparse.csr_matrix:
    """Writes the index again with these words, whole or not at all; returns its impacts [n, V + words].

    Raises:
        UsageError: it holds texts, which are not in its postings.
    """
    folder, manifest, own, report = index.folder, index.manifest, index.own, read_report(index.folder)
    options = IndexOptions(**report.options)
    if TEXT in report.fields or options.store_text:
        raise UsageError(
            f"{folder}: holds texts beside impacts, which cannot be read back; build it without --text and --store-text"
        )
    entry = TaughtEntry({**index.entry, "words": words})
    changed = {key: value for key, value in manifest.encoder.options.items() if key != TAUGHT}
    if words:
        changed[TAUGHT] = entry
        taught = TaughtWords(own.vocabulary, entry)
        own = OwnVectors(own.ids, taught.with_words(own.impacts), taught.vocabulary)
    lengths, data = np.diff(own.impacts.indptr), own.impacts.data
    held = {"empty": int((lengths == 0).sum()), "postings": len(data), "max_impact": int(data.max(initial=0))}
    after = replace(
        manifest,
        encoder=EncoderRef({**manifest.encoder, "options": changed}),
        vocabulary={"size": len(own.vocabulary), "digest": own.vocabulary.digest},
        counts=Counts({**manifest.counts, **held}),
    )
    shards = room_of(folder)
    try:
        write_own_shards(own, shards, after, metadata_of(folder, report.fields))
        build_index(shards, folder, overwrite=True, options=vars(options))
    finally:
        shutil.rmtree(shards, ignore_errors=True)
    return own.impacts


def fitted(index: TaughtIndex, pictures: Sequence[Path], device: str = "auto") -> Fitted:
    """A word from pictures of one thing, against the other documents of the index.

    Raises:
        DataError: a picture that cannot be read.
        UsageError: too few other documents, or an encoder that reads no pictures.
    """
    from lexvl_anserini.encoders.encoder import as_lexical
    from lexvl_anserini.ground.records import Document

    model = without_taught(EncoderChanges(device=device).load(index.manifest))
    side, digests = as_lexical(model.document), {file_sha256(path): path for path in pictures}
    if len(digests) < len(pictures):
        log.warning("%d of the pictures are copies of others and do not count", len(pictures) - len(digests))
    inputs = [side.read(Document(path.name, image=str(path))) for path in digests.values()]
    scale, largest = index.entry.scale, index.entry.largest
    examples = quantised(side.weights(inputs), scale, largest).impacts
    word, held_out = fit(index.own.impacts, examples, index.own.vocabulary, scale)
    return Fitted(TaughtWord({**word, "pictures": sorted(digests)}), held_out)


def fit(
    impacts: sparse.csr_matrix, examples: sparse.csr_matrix, vocabulary: Vocabulary, scale: float
) -> tuple[TaughtWord, list[float]]:
    """A word and its held-out shares from the impacts of an index [n, V] and of examples [k, V].

    A document `FLOOR` standard deviations above the mean score has weight 0. One as far above as a held-out example is
    in the mean has the weight that the heaviest term of a document has in the mean.
    """
    ridge = Ridge(others_of(impacts, examples).astype(np.float64) / scale)
    if (count := ridge.others.shape[0]) < FEWEST_OTHERS:
        raise UsageError(f"the index has {count} documents besides these pictures; expected {FEWEST_OTHERS} or more")
    weights = examples.astype(np.float64) / scale
    coefficients = heaviest(ridge.coefficients(weights), ridge.deviation)
    scores = ridge.others @ coefficients
    mean, deviation = float(scores.mean()), float(scores.std())
    if not deviation:
        raise UsageError("these pictures have the terms of all others in the index; a word cannot tell them apart")
    held_out = ridge.without_each(weights) if weights.shape[0] > 1 else []
    distances = [each.distance for each in held_out] or (weights @ coefficients - mean) / deviation
    peak = float(ridge.others.max(axis=1).toarray().mean())
    factor = peak / deviation / max(float(np.mean(distances)) - FLOOR, 1.0)
    rounded = np.rint(coefficients * factor * UNIT).astype(int)
    shares = [each.share for each in held_out]
    return TaughtWord(
        bias=round(-(mean + FLOOR * deviation) * factor, 9),
        coefficients={vocabulary.terms[at]: int(rounded[at]) for at in np.flatnonzero(rounded)},
        held_out=round(float(np.mean(shares)), 4) if shares else 0.0,
    ), shares


def heaviest(coefficients: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """The coefficients [V] that move scores most, the others 0."""
    order = np.argsort(-np.abs(coefficients) * deviation, kind="stable")
    without = coefficients.copy()
    without[order[COEFFICIENTS:]] = 0
    return without


def others_of(impacts: sparse.csr_matrix, examples: sparse.csr_matrix) -> sparse.csr_matrix:
    """Rows of an index, of many some at equal distances, without those that examples have."""
    count = min(impacts.shape[0], MOST_OTHERS)
    some = impacts[np.linspace(0, max(impacts.shape[0] - 1, 0), count).astype(int)]
    known = set(map(_bytes_of, examples))
    return some[[number for number, row in enumerate(some) if _bytes_of(row) not in known]]


def _bytes_of(row: sparse.csr_matrix) -> bytes:
    row.sort_indices()
    return bytes(row.indices.astype(np.int64).tobytes() + row.data.astype(np.int64).tobytes())


def free_term(index: TaughtIndex, name: str) -> str:
    """The term of a name that the index lacks.

    Raises:
        UsageError: it is a term of the encoder, a taught word, or no name.
    """
    term = term_of(name)
    if term in index.own.vocabulary.dimension:
        raise UsageError(f"{term!r} is a term of the encoder already; teach another name, such as {term + '_2'!r}")
    if term in index.entry.words:
        raise UsageError(f"{term!r} is taught already; --remove {term!r} first, or teach another name")
    return term


def taught_from(index: TaughtIndex, file: Path) -> tuple[str, TaughtWord]:
    """The term and the word of a file that `--export` wrote, checked to be of the encoder of the index.

    Raises:
        ArtefactError: no such file, or one for another encoder.
    """
    content = read_json(file, "taught word")
    encoder = encoder_of(index)
    word = content.get("word")
    if content.get("format") != FORMAT or not isinstance(content.get("name"), str) or not isinstance(word, dict):
        raise ArtefactError(f"{file}: no taught word ({FORMAT}); expected a file that teach --export wrote")
    if content.get("encoder") != encoder:
        raise ArtefactError(f"{file}: taught to another encoder than that of {index.folder}; teach it by pictures")
    checked = checked_word(word, index.own.vocabulary, str(file), "export it again")
    return free_term(index, content["name"]), checked


def encoder_of(index: TaughtIndex) -> dict[str, Any]:
    """What the coefficients of a word depend on."""
    encoder = index.manifest.encoder
    return {
        "name": encoder.name,
        "checkpoint_digest": encoder.checkpoint_digest,
        "vocabulary": index.own.vocabulary.digest,
    }


def export(index: TaughtIndex, term: str, file: Path) -> None:
    """Writes a taught word to a file, for other indexes of the encoder."""
    word = index.entry.words[term]
    write_json(file, {"format": FORMAT, "name": term, "encoder": encoder_of(index), "word": word})
    typer.echo(f"{printable(term)}: {file.stat().st_size:,} bytes in {file}")


def digest_of_word(term: str, word: dict[str, Any]) -> str:
    """The first 16 hex digits of the SHA-256 of a word."""
    return sha256(orjson.dumps([term, word], option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def listed(index: TaughtIndex) -> None:
    """Prints the taught words of an index."""
    counts = TaughtWords(index.own.vocabulary, index.entry).impacts(index.own.impacts)
    for number, (term, word) in enumerate(index.entry.words.items()):
        documents = f"in {(counts[:, number] > 0).sum():,} of {len(index.own.ids):,} documents"
        pictures = f"{len(word['pictures'])} pictures, {held_out_of(word)}"
        typer.echo(f"{printable(term)}  {pictures}, {documents}, {digest_of_word(term, word)}")
    typer.echo(f"{len(index.entry.words):,} taught words")


def held_out_of(word: dict[str, Any]) -> str:
    """The held-out figure in words."""
    return f"held out {word['held_out']:.1%}" if len(word["pictures"]) > 1 else "not held out"


def warn_of(term: str, count: int, held_out: Sequence[float]) -> None:
    """Logs a warning about too few pictures, or pictures that differ."""
    if count < LEAST:
        log.warning("%s: taught by %d; three to ten pictures are better", printable(term), count)
    if held_out and float(np.mean(held_out)) < HELD_OUT:
        log.warning(
            "%s: a picture that is left out scores above %.1f %% of the index in the mean, the worst above %.1f %%; "
            "the pictures differ, or the encoder does not see what they share: expect little",
            printable(term),
            100 * float(np.mean(held_out)),
            100 * min(held_out),
        )


@dataclass(frozen=True)
class TeachOptions:
    """What to do instead of teaching by pictures."""

    source: Annotated[Path | None, typer.Option("--from", help="Take the word from this file of --export.")] = None
    output: Annotated[Path | None, typer.Option("--export", help="Write the word to this file, some kB.")] = None
    remove: Annotated[str | None, typer.Option(help="Remove this taught word.")] = None


@cli.expanded
def command(
    index: Annotated[Path, typer.Argument(help="Folder of an impact index, or of photos: lexvl-photos/NAME.")],
    word: Annotated[str | None, typer.Argument(help="The new word; without one, the taught words are listed.")] = None,
    pictures: Annotated[list[Path] | None, typer.Argument(help="Three to ten pictures of it.")] = None,
    *,
    options: TeachOptions,
    device: cli.Device = "auto",
    verbose: cli.Verbose = False,
) -> None:
    """Teach an index a new word by pictures; no picture of the index is encoded again.

    A word with --export and without pictures is exported. --from and --remove need no word.

    Example: python -m lexvl_anserini.searching.teach lexvl-photos/pictures "Miso" a.jpg b.jpg c.jpg
    """
    check_arguments(word, pictures or [], options)
    folder = in_album(index)
    index_manifest(folder)
    with exclusive(folder.resolve().parent):
        shutil.rmtree(room_of(folder), ignore_errors=True)  # a killed process left them
        taught = read_taught(folder)
        if options.remove is not None:
            remove(taught, options.remove)
        elif options.source is not None:
            add(taught, *taught_from(taught, options.source))
        elif word is not None and pictures:
            term = free_term(taught, word)
            result = fitted(taught, pictures, device)
            warn_of(term, len(result.word.pictures), result.held_out)
            taught = add(taught, term, result.word)
        elif word is None:
            listed(taught)
        if word is not None and options.output is not None:
            export(taught, known_word(taught, word), options.output)


def known_word(index: TaughtIndex, name: str) -> str:
    """The term of a taught word.

    Raises:
        UsageError: there is no such word.
    """
    term = term_of(name)
    if term not in index.entry.words:
        there = ", ".join(map(printable, index.entry.words)) or "none"
        raise UsageError(f"{index.folder}: {term!r} is no taught word; taught: {there}")
    return term


def remove(index: TaughtIndex, name: str) -> None:
    """Writes the index without a taught word."""
    term = known_word(index, name)
    with_words(index, {other: word for other, word in index.entry.words.items() if other != term})
    typer.echo(f"{printable(term)}: removed")


def add(index: TaughtIndex, term: str, word: TaughtWord) -> TaughtIndex:
    """Writes the index with one more word, and returns it."""
    words = {**index.entry.words, term: dict(word)}
    impacts = with_words(index, words)[:, -1]
    typer.echo(
        f"{printable(term)}: taught by {len(word.pictures)} pictures ({held_out_of(word)}), "
        f"in {impacts.nnz:,} of {impacts.shape[0]:,} documents"
    )
    return index._replace(entry=TaughtEntry({**index.entry, "words": words}))


def check_arguments(word: str | None, pictures: Sequence[Path], options: TeachOptions) -> None:
    """Raises UsageError for arguments that do not go together."""
    others = [name for name, value in (("--from", options.source), ("--remove", options.remove)) if value is not None]
    if others and (word is not None or len(others) > 1):
        raise UsageError(f"{others[0]} takes neither a word nor pictures, and no other change beside it")
    if options.remove is not None and options.output is not None:
        raise UsageError("--remove and --export: export the word first, then remove it")
    if word is not None and not pictures and options.output is None:
        raise UsageError(f"teach {word!r:.60} by pictures: name three to ten of it, or --export FILE to write the word")
    if word is None and options.output is not None:
        raise UsageError("--export: name the word to export")
    if missing := [path for path in pictures if not path.is_file()]:
        raise UsageError(f"{missing[0]}: no such picture; the word comes first, then pictures")


if __name__ == "__main__":
    cli.run(command)
