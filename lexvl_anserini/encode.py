"""Corpus -> shards of vectors, topics -> query vectors.

python -m lexvl_anserini.encode --corpus beir/scifact --encoder vdr --checkpoint minilm --output impacts/scifact
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from lexvl_anserini.cli import (
    DataDir,
    Overwrite,
    Verbose,
    check_style,
    file_name,
    parse_settings,
    print_rows,
    progress_bar,
    run,
)
from lexvl_anserini.data.images import FAIL, ON_ERROR, OnError
from lexvl_anserini.encoders.cards import (
    ENCODERS,
    TRIED_ON,
    default_encoder,
    direction_option,
    length_options,
    natural_direction,
)
from lexvl_anserini.errors import UnknownName, UsageError
from lexvl_anserini.manifest import Manifest
from lexvl_anserini.progress import silent
from lexvl_anserini.queries.query_vectors import encode_topics
from lexvl_anserini.queries.topics import load_topics

if TYPE_CHECKING:
    from lexvl_anserini.data.dataset import Dataset
    from lexvl_anserini.encoders.encoder import Encoder
    from lexvl_anserini.shards.layout import Part

# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("lexvl_anserini.encode")

# Documents that a dry run times.
DRY_RUN_SAMPLE = 64


def list_encoders(style: str = "text") -> str:
    """One line per registered encoder: name, what it reads, licence, paper, known checkpoints; or all that as JSON."""
    from lexvl_anserini.encoders.describing import listing

    rows = listing()
    if style == "json":
        return orjson.dumps(rows).decode()
    lines = []
    for row in rows:
        checkpoints = ", ".join(row["checkpoints"]) or "-"
        reads = ",".join(row["modalities"])
        lines.append(f"{row['name']:16}  {reads:10}  {row['licence']:15}  {row['paper']}  [{checkpoints}]")
    return "\n".join(lines)


def describe_encoder(name: str, style: str = "text") -> str:
    """Everything about one encoder: equation, paper, checkpoints, options for --set, an example.

    Raises:
        UnknownName: no such encoder.
    """
    from lexvl_anserini.encoders.describing import describe

    about = describe(name)
    if style == "json":
        return orjson.dumps(about).decode()
    lines = [f"{about['name']}: {about['equation']}", ""]
    lines += [about["about"], ""] if about["about"] else []
    lines += [f"reads        {', '.join(about['modalities'])}", f"paper        {about['paper']}"]
    lines += [f"licence      {about['licence']}", f"checkpoints  {', '.join(about['checkpoints']) or '-'}", ""]
    lines += (
        ["options (--set KEY=VALUE; - is the checkpoint's own or as told):"] if about["options"] else ["no options"]
    )
    for option in about["options"]:
        lines.append(f"  {option['name']}={option['default']}  ({option['type']})  {option['meaning']}".rstrip())
    return "\n".join([*lines, "", f"Example: {about['example']}"])


def report(manifest: Manifest, output: Path, seconds: float) -> dict[str, Any]:
    """What the command prints: counts, clipped and dropped shares, size and time."""
    counts = dict(manifest.counts)
    rows: dict[str, Any] = {"output": str(output), "encoder": manifest.encoder["name"], **counts}
    if postings := counts.get("postings"):
        rows["postings_per_document"] = round(postings / counts["documents"], 1)
        rows["clipped_share"] = round(counts["clipped"] / postings, 6)
        rows["dropped_share"] = round(counts["dropped"] / (postings + counts["dropped"]), 6)
    if manifest.quantiser:
        rows["scale"] = manifest.quantiser["document"]["scale"]
    rows["bytes"] = sum(shard["bytes"] for shard in manifest.shards)
    rows["shards"] = len(manifest.shards)
    rows["seconds"] = round(seconds, 2)
    return rows


def estimate(
    dataset: Dataset, model: Encoder, batch_size: int, on_error: OnError = FAIL, part: Part | None = None
) -> dict[str, Any]:
    """The documents of a corpus or a part, and the time their encoding will take, from a sample of them."""
    from lexvl_anserini.data.checks import check_corpus
    from lexvl_anserini.quantise import Quantiser, SideQuantiser
    from lexvl_anserini.shards.writing import calibration_sample, encode_shard

    summary = check_corpus(dataset.documents, dataset.name)
    sample = calibration_sample(dataset.documents(), summary.documents)[:DRY_RUN_SAMPLE]
    plain = Quantiser(document=SideQuantiser("peak", 8))
    started = time.perf_counter()
    shard = encode_shard(sample, model, plain, batch_size, silent, on_error)
    documents = part.span(summary.documents)[1] if part else summary.documents
    seconds = (time.perf_counter() - started) / len(sample) * documents
    rows: dict[str, Any] = {"documents": documents, "estimated_seconds": round(seconds, 1)}
    if "postings" in (counts := shard.counts()):
        rows["estimated_postings"] = round(counts["postings"] / len(sample) * documents)
    return rows


def part_of(number: int | None, of: int | None) -> Part | None:
    """The part that --shard-id and --shard-num name; None for the whole corpus.

    Raises:
        UsageError: one is given without the other, or there is no such part.
    """
    from lexvl_anserini.shards.layout import Part

    if number is None and of is None:
        return None
    if number is None or of is None:
        raise UsageError("--shard-id and --shard-num go together, for example --shard-id 0 --shard-num 4")
    Part(number, of).span(of)  # any corpus has as many documents
    return Part(number, of)


def command(
    corpus: Annotated[
        str,
        typer.Option(help="demo, beir/<name>, coco, flickr30k, flickr8k, beir:<path> or folder:<path>."),
    ] = "demo",
    encoder: Annotated[str | None, typer.Option(help="A row of --list-encoders; default by corpus.")] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(help="Folder, hub id (owner/name[@revision]), or packaged: minilm, demo-vdr, demo-dense."),
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="Folder of the shards; default impacts/<corpus>.<encoder>.")
    ] = None,
    topics: Annotated[
        str | None,
        typer.Option(help="Encode topics instead: dataset/split or a topics file; --output names Q.jsonl.gz."),
    ] = None,
    split: Annotated[str | None, typer.Option(help="Of corpora that are split themselves; default test.")] = None,
    direction: Annotated[
        str | None,
        typer.Option(help="Of captioned images: text-to-image, image-to-text, text-to-text; default the corpus's own."),
    ] = None,
    data_dir: DataDir = None,
    escape_ids: Annotated[bool, typer.Option("--escape-ids", help="Percent-encode ids that have white space.")] = False,
    tokenizer: Annotated[str | None, typer.Option(help="Take the tokenizer from this folder or hub id.")] = None,
    backbone_config: Annotated[str | None, typer.Option(help="Take the backbone's configuration from here.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    batch_size: Annotated[int, typer.Option(min=1, help="Texts per forward pass.")] = 32,
    max_length: Annotated[
        int | None, typer.Option(min=1, help="Tokens read per document; per text where there is one limit.")
    ] = None,
    query_max_length: Annotated[int | None, typer.Option(min=1, help="Tokens read per query.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="An encoder's option, KEY=VALUE; repeatable.")
    ] = None,
    quantiser: Annotated[str, typer.Option(help="calibrated, fixed (with --scale) or naver.")] = "calibrated",
    bits: Annotated[int, typer.Option(help="Of document impacts.")] = 8,
    query_bits: Annotated[int, typer.Option(help="Of query weights, lowered where a score could reach 2^24.")] = 8,
    scale: Annotated[float | None, typer.Option(help="Impacts per unit of weight, for fixed.")] = None,
    percentile: Annotated[float, typer.Option(help="Of the sample's maxima that becomes the largest impact.")] = 100.0,
    shard_format: Annotated[str, typer.Option(help="jsonl or parquet.")] = "jsonl",
    shard_size: Annotated[int, typer.Option(min=1, help="Documents per shard.")] = 4096,
    compress: Annotated[bool, typer.Option("--compress", help="Gzip the jsonl shards.")] = False,
    store_contents: Annotated[bool, typer.Option("--store-contents", help="Keep each text beside its vector.")] = False,
    store_metadata: Annotated[
        bool, typer.Option("--store-metadata", help="Keep each document's metadata beside its vector.")
    ] = False,
    on_error: Annotated[
        str, typer.Option(help="Of pictures that cannot be read: fail, or skip (counted and listed in skipped.jsonl).")
    ] = "fail",
    shard_id: Annotated[
        int | None, typer.Option(help="Encode one part of the corpus only: its number, from 0.")
    ] = None,
    shard_num: Annotated[int | None, typer.Option(help="Into how many parts the corpus is divided.")] = None,
    overwrite: Overwrite = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done and how long it takes.")] = False,
    list_all: Annotated[bool, typer.Option("--list-encoders", help="List the encoders and stop.")] = False,
    described: Annotated[str | None, typer.Option("--describe", help="Tell all about one encoder and stop.")] = None,
    style: Annotated[str, typer.Option("--format", help="Of printed numbers: text or json.")] = "text",
    verbose: Verbose = False,
) -> None:
    """Encode a corpus (or topics) into vectors on disk.

    Example: python -m lexvl_anserini.encode --corpus demo --encoder bag-of-tokens --output impacts/demo
    """
    check_style(style)
    if list_all or described:
        typer.echo(describe_encoder(described, style) if described else list_encoders(style))
        return
    if encoder is not None and encoder not in ENCODERS:
        raise UnknownName("encoder", encoder, ENCODERS)
    if topics and not output:
        raise UsageError("--topics needs --output, for example --output queries.jsonl.gz")
    if on_error not in ON_ERROR:
        raise UsageError(f"--on-error {on_error!r}: expected {' or '.join(ON_ERROR)}")
    part = part_of(shard_id, shard_num)
    if part and topics:
        raise UsageError("--shard-id divides a corpus; --topics are encoded as a whole")
    from lexvl_anserini.data.dataset import load_dataset

    direction = natural_direction(encoder, direction)
    stream, origin = load_topics(topics, data_dir, escape_ids, direction) if topics else (None, {})
    dataset = load_dataset(corpus, split, data_dir, escape_ids, direction)
    if not topics:
        next(dataset.documents(), None)  # a corpus that cannot be read is told before a model is loaded
    name, default_checkpoint = default_encoder(corpus, dataset.direction, encoder)
    if default_checkpoint and not checkpoint and corpus.split("/")[0] in TRIED_ON:
        log.warning("%s was trained on drawings, not on photos; --checkpoint names another model", default_checkpoint)
    from lexvl_anserini.encoders.loading import load_encoder
    from lexvl_anserini.quantise import Quantiser
    from lexvl_anserini.shards.layout import Layout
    from lexvl_anserini.shards.writing import write_impacts

    wanted = Quantiser.named(quantiser, bits, query_bits, scale, percentile)
    layout = Layout(shard_format, shard_size, compress, store_contents, store_metadata)
    options = parse_settings(settings or ())
    options = {**direction_option(name, dataset.direction), **options}
    asked = str(options.get("direction", dataset.direction))
    options |= length_options(name, asked, max_length, query_max_length)
    model = load_encoder(name, checkpoint or default_checkpoint, tokenizer, backbone_config, device, **options)
    suffix = f".part-{part.number}-of-{part.of}" if part else ""
    target = Path(output) if output else Path("impacts") / f"{file_name(corpus)}.{name}{suffix}"
    started = time.perf_counter()
    if dry_run:
        about = {"output": str(target), "encoder": name, "checkpoint": model.checkpoint, "corpus": topics or corpus}
        counted = (
            {"topics": sum(1 for _ in stream)}
            if stream is not None
            else estimate(dataset, model, batch_size, OnError(on_error), part)
        )
        rows = about | counted
    elif stream is not None:
        rows = encode_topics(model, stream, origin, wanted, target, batch_size, overwrite)
    else:
        with progress_bar(f"encode {corpus} with {name}", None) as progress:
            manifest = write_impacts(
                dataset, model, target, wanted, layout, batch_size, overwrite, progress, on_error, part
            )
        rows = report(manifest, target, time.perf_counter() - started)
    print_rows(rows, style)


if __name__ == "__main__":
    run(command)
