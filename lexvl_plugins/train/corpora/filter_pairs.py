"""Shards -> shards of the pairs whose image and text fit each other: `lexvl filter-pairs CORPUS --output FOLDER`.

STAIR (arXiv 2301.13081, section 4.1) so leaves out pairs of the web with a CLIPScore below 0.2.

FOLDER/
  NAME.tar      the members of the kept pairs of the shard NAME, in its order, with the same bytes
  filter.json   the request, and of each finished shard its size and time and what became of its pairs
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

from lexvl_anserini import cli
from lexvl_anserini.data.lines import LeftOut, read_file_state
from lexvl_anserini.data.pictures.archives import Archive, index_archive
from lexvl_anserini.encoders.encoder import Encoder, as_dense
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.encoders.parts.sparsify import cut
from lexvl_anserini.ground.claims import Claim, claim
from lexvl_anserini.ground.errors import ArtefactError, DataError, OnError
from lexvl_anserini.ground.files import (
    atomic_write,
    exclusive,
    make_folder,
    name_part,
    read_json,
    refuse_inside,
    withdraw,
    write_json,
)
from lexvl_anserini.ground.progress import progress_bar
from lexvl_anserini.ground.records import Document, Topic
from lexvl_plugins.train.corpora.webdataset import ShardImage, find_shards, get_stem, read_shard

RECORD = "filter.json"
# STAIR's threshold.
LEAST = 0.2

# The cosine of each pair of a shard, float32 [n], NaN where its image cannot be read.
Scorer = Callable[[Archive, Sequence[ShardImage], LeftOut], np.ndarray]


class FilteredPairs(NamedTuple):
    """The pairs of shards: all, and what became of them. An image that cannot be read is not kept."""

    pairs: int = 0
    matching: int = 0
    dropped: int = 0
    unreadable: int = 0


def make_scorer(encoder: Encoder, batch_size: int) -> Scorer:
    """The cosine of the vectors of a dense encoder of texts (queries) and images (documents)."""
    texts, images = as_dense(encoder.query), as_dense(encoder.document)

    def score(archive: Archive, pairs: Sequence[ShardImage], left_out: LeftOut) -> np.ndarray:
        captions = [texts.read_topic(Topic(pair.pair_id, pair.text)) for pair in pairs]
        places = [f"{archive.path}::{pair.member}" for pair in pairs]
        pictures = [images.read(Document(pair.pair_id, image=place)) for pair, place in zip(pairs, places, strict=True)]
        skipping = OnError("skip")
        seen, said = images.vectors(pictures, batch_size, on_error=skipping), texts.vectors(captions, batch_size)
        scores = compute_cosines(seen, said)
        for position, reference, _ in skipping.skipped:
            left_out.add("an image that cannot be decoded", reference)
            scores[position] = np.nan
        return scores

    return score


def compute_cosines(images: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """Cosines float32 [n] of rows [n, D]; 0 where one is zero."""
    cosines: np.ndarray = np.einsum("nd,nd->n", cut(images, None, True), cut(texts, None, True))
    return cosines


def filter_shards(
    shards: Mapping[str, Path], output: Path, score: Scorer, request: Mapping[str, Any], least: float, overwrite: bool
) -> FilteredPairs:
    """Writes the kept pairs of all shards into a folder, and goes on where a killed process stopped.

    Raises DataError for damaged shards when all others are written.
    """
    for folder in {path.parent for path in shards.values()}:
        refuse_inside(output, folder, "the shards that are read")
    left_out, problems = LeftOut(), list[str]()
    with exclusive(output), progress_bar("filter pairs", len(shards), "shards") as advance:
        finished = open_record(output, request, overwrite)
        for name, path in shards.items():
            state = read_file_state(path)
            seen, known, target = [state.size, state.mtime_ns], finished.get(name), output / f"{name}.tar"
            if known is None or known["file"] != seen or not target.is_file():
                try:
                    counts = filter_shard(name, index_archive(path.absolute(), state), target, score, least, left_out)
                except DataError as problem:
                    problems.append(str(problem))
                    continue
                finished[name] = {"file": seen, **counts._asdict()}
                write_json(output / RECORD, {"request": request, "shards": finished})
            advance(1)
    left_out.log(str(output))
    if problems:
        others = f"; {len(problems) - 1} other shards are damaged too" if len(problems) > 1 else ""
        raise DataError(f"{problems[0]}{others}; replace it and run the same command again")
    return FilteredPairs(*(sum(finished[name][key] for name in shards) for key in FilteredPairs._fields))


def open_record(output: Path, request: Mapping[str, Any], overwrite: bool) -> dict[str, Any]:
    """What is known of the finished shards of this request; none at its start, which removes those of another one."""
    path = output / RECORD
    names = {entry.name for entry in output.iterdir()} - {name_part(path).name}
    if names and RECORD not in names:
        raise ArtefactError(f"{output}: not empty and not written by filter-pairs; name another --output")
    earlier = read_json(path, "record of filtered shards") if names else None
    if claim(output, "shards", request, earlier and earlier["request"], overwrite, False) is not Claim.FRESH:
        assert earlier is not None
        return dict(earlier["shards"])
    for name in earlier["shards"] if earlier else ():
        withdraw(output / f"{name}.tar")
    write_json(path, {"request": request, "shards": {}})
    return {}


def filter_shard(
    name: str, archive: Archive, target: Path, score: Scorer, least: float, left_out: LeftOut
) -> FilteredPairs:
    """Writes the kept pairs of a shard, all members of theirs."""
    pairs = [pair for pair in read_shard(archive, name, left_out, escape_ids=True) if pair.text is not None]
    scores = score(archive, pairs, left_out) if pairs else np.zeros(0)
    chosen = {get_stem(pair.member) for pair, value in zip(pairs, scores, strict=True) if value >= least}
    make_folder(target.parent)
    with atomic_write(target) as out, tarfile.open(fileobj=out, mode="w") as shard:
        for member in archive.members:
            if get_stem(member) in chosen:
                entry = tarfile.TarInfo(member)
                entry.size = archive.place(member).size
                shard.addfile(entry, BytesIO(archive.read(member)))
    unreadable = int(np.isnan(scores).sum())
    counts = FilteredPairs(len(pairs), len(chosen), int((scores < least).sum()), unreadable)
    written = index_archive(target.absolute(), read_file_state(target))
    written_pairs = sum(pair.text is not None for pair in read_shard(written, name, LeftOut(), escape_ids=True))
    if written_pairs != counts.matching or counts.pairs != counts.matching + counts.dropped + counts.unreadable:
        raise ArtefactError(f"{target}: has {written_pairs:,} pairs, expected {counts}; run the same command again")
    return counts


def command(
    corpus: Annotated[str, typer.Argument(help="Shards: a folder, a tar, or a pattern such as cc3m/{0000..0331}.tar.")],
    output: Annotated[Path, typer.Option(help="Folder of the shards to write.")],
    checkpoint: cli.Checkpoint = None,
    encoder: Annotated[
        str, typer.Option(help="A dense encoder of texts and images.", autocompletion=cli.encoder_names)
    ] = "dense-crossmodal",
    least: Annotated[
        float, typer.Option(min=-1, max=1, help="Least cosine of the image and the text of a pair.")
    ] = LEAST,
    settings: cli.Settings = None,
    device: cli.Device = "auto",
    batch_size: cli.BatchSize = 32,
    overwrite: cli.Overwrite = False,
    style: cli.Style = "text",
    verbose: cli.Verbose = False,
) -> None:
    """Keep the pairs of shards whose image and text fit; an interrupted call goes on.

    Example: python -m lexvl_plugins.train.corpora.filter_pairs cc3m --checkpoint photos-dense --output cc3m-kept
    """
    shards = find_shards(f"webdataset:{corpus.removeprefix('webdataset:')}")
    loaded = load_encoder(encoder, checkpoint, device=device, **cli.parse_settings(settings or ()))
    request = {"encoder": loaded.identity().without_places(), "least": least}
    counts = filter_shards(shards, output, make_scorer(loaded, batch_size), request, least, overwrite)
    cli.print_rows({"output": str(output), "shards": len(shards), **counts._asdict()}, style)


if __name__ == "__main__":
    cli.run(command)
