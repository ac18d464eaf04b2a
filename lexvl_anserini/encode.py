"""Corpus -> shards of vectors, topics -> query vectors."""

from __future__ import annotations

import logging
import time
from dataclasses import astuple, dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import orjson
import typer

from lexvl_anserini import cli
from lexvl_anserini.encoders.cards import (
    CARDS,
    choose_encoder,
    choose_natural_direction,
    make_direction_option,
    make_length_options,
    remark_on,
)
from lexvl_anserini.ground.errors import OnError, UnreadableImage, UsageError
from lexvl_anserini.ground.manifest import Manifest
from lexvl_anserini.ground.progress import silent
from lexvl_anserini.ground.records import CorpusRef
from lexvl_anserini.queries.query_source import load_topics
from lexvl_anserini.queries.query_vectors import encode_topics

if TYPE_CHECKING:
    from lexvl_anserini.data.dataset import Dataset
    from lexvl_anserini.encoders.encoder import Encoder
    from lexvl_anserini.encoders.loading import EncoderSpec
    from lexvl_anserini.ground.quantise import Quantiser
    from lexvl_anserini.shards.layout import Layout, Part

log = logging.getLogger("lexvl_anserini.encode")  # __name__ is "__main__" when the module runs as the command

# Documents that a dry run times, and those before them that warm the machine up.
DRY_RUN_SAMPLE, WARMING = 128, 8


def report(manifest: Manifest, output: Path, seconds: float) -> dict[str, Any]:
    """The rows that the command prints: counts, clipped and dropped shares, size and time."""
    counts = manifest.counts
    rows: dict[str, Any] = {"output": str(output), "encoder": manifest.encoder.name, **counts}
    if postings := counts.postings:
        rows["postings_per_document"] = round(postings / counts.documents, 1)
        rows["clipped_share"] = round(counts.clipped / postings, 6)
        rows["dropped_share"] = round(counts.dropped / (postings + counts.dropped), 6)
    if manifest.quantiser:
        rows["scale"] = manifest.quantiser["document"]["scale"]
    rows["bytes"] = sum(shard["bytes"] for shard in manifest.shards)
    rows["shards"] = len(manifest.shards)
    rows["seconds"] = round(seconds, 2)
    return rows


def estimate(
    dataset: Dataset,
    model: Encoder,
    quantiser: Quantiser,
    layout: Layout,
    batch_size: int,
    on_error: str,
    part: Part | None,
) -> dict[str, Any]:
    """The number of documents of a corpus or a part, and the time that encoding will take.

    All documents are read once, which encoding does twice; a sample of them is encoded and written, to memory.
    """
    from lexvl_anserini.data.checks import check_corpus
    from lexvl_anserini.ground.quantise import Quantiser, SideQuantiser
    from lexvl_anserini.shards.encoding import draw_sample, encode_shard, sample_size
    from lexvl_anserini.shards.layout import SHARD_WRITERS

    started, policy = time.perf_counter(), OnError(on_error)
    summary = check_corpus(dataset.documents, dataset.name)
    reading_s = time.perf_counter() - started
    sample = draw_sample(dataset.documents(), summary.documents, DRY_RUN_SAMPLE)
    plain = Quantiser(document=SideQuantiser("peak", 8))
    encode_shard(sample[:WARMING], model, plain, batch_size, silent, policy)
    started = time.perf_counter()
    shard = encode_shard(sample, model, plain, batch_size, silent, policy)
    encoding_s = (time.perf_counter() - started) / len(sample)
    started, vocabulary = time.perf_counter(), model.vocabulary if model.kind == "impact" else None
    SHARD_WRITERS[model.kind, layout.fit_kind(model.kind).shard_format](BytesIO(), shard, vocabulary, layout)
    writing_s = (time.perf_counter() - started) / len(sample)
    documents = part.span(summary.documents)[1] if part else summary.documents
    calibrating = sample_size(quantiser, model, summary.documents)
    seconds = 2 * reading_s + encoding_s * (documents + calibrating) + writing_s * documents
    rows: dict[str, Any] = {"documents": documents, "estimated_seconds": round(seconds, 1)}
    if "postings" in (counts := shard.counts()):
        rows["estimated_postings"] = round(counts["postings"] / len(sample) * documents)
    return rows


@dataclass(frozen=True)
class InputOptions:
    """What to encode, with which encoder, and the output."""

    corpus: Annotated[
        str,
        typer.Option(
            help="demo, beir/<name>, coco, flickr30k, flickr8k, beir:<path> or folder:<path>.",
            autocompletion=cli.corpus_names,
        ),
    ] = "demo"
    encoder: Annotated[
        str | None, typer.Option(help="A row of --list-encoders; default by corpus.", autocompletion=cli.encoder_names)
    ] = None
    checkpoint: cli.Checkpoint = None
    output: Annotated[str | None, typer.Option(help="Folder of the shards; default impacts/<corpus>.<encoder>.")] = None
    topics: Annotated[
        str | None,
        typer.Option(help="Encode topics instead: dataset/split or a topics file; --output names Q.jsonl.gz."),
    ] = None
    index: Annotated[
        str | None, typer.Option(help="With --topics: encode them as a search of this index does, with its encoder.")
    ] = None
    split: Annotated[str | None, typer.Option(help="Split of a corpus that has splits; default test.")] = None
    direction: Annotated[
        str | None,
        typer.Option(help="For captioned images: text-to-image, image-to-text or text-to-text; default by corpus."),
    ] = None
    data_dir: cli.DataDir = None
    escape_ids: Annotated[bool, typer.Option("--escape-ids", help="Percent-encode ids that have white space.")] = False
    passages: Annotated[
        str | None,
        typer.Option(help="Split texts into passages DOC#N of WORDS[:STRIDE] words, for search --passages; 150:75."),
    ] = None

    on_error: Annotated[
        Literal["fail", "skip"],
        typer.Option(help="For images that cannot be read: fail, or skip (counted and listed in skipped.jsonl)."),
    ] = "fail"
    shard_id: Annotated[int | None, typer.Option(help="Encode one part of the corpus only: its number, from 0.")] = None
    shard_num: Annotated[int | None, typer.Option(help="Number of parts of the corpus.")] = None

    def check(self) -> None:
        """Raises UnknownName for an unknown encoder, UsageError for options that do not go together."""
        if self.encoder is not None:
            _ = CARDS[self.encoder]
        if self.topics and self.passages:
            raise UsageError("--passages splits the texts of a corpus; --topics are encoded as they are")
        if self.index and (not self.topics or self.encoder):
            raise UsageError("--index names the encoder of --topics; give it with --topics and without --encoder")
        if self.topics and not self.output:
            raise UsageError("--topics needs --output, for example --output queries.jsonl.gz")
        if (self.shard_id is None) != (self.shard_num is None):
            raise UsageError("--shard-id and --shard-num go together, for example --shard-id 0 --shard-num 4")
        if self.part and self.topics:
            raise UsageError("--shard-id divides a corpus; --topics are encoded as a whole")

    @property
    def part(self) -> Part | None:
        """The part of the corpus; None for the whole corpus. Raises UsageError if there is no such part."""
        from lexvl_anserini.shards.layout import Part

        if self.shard_id is None or self.shard_num is None:
            return None
        part = Part(self.shard_id, self.shard_num)
        part.span(self.shard_num)  # a corpus of that many documents: raises if there is no such part
        return part

    def ref(self, name: str, split: str | None = None) -> CorpusRef:
        """The dataset of a name, in the direction that the encoder reads."""
        return CorpusRef(
            name, split, self.data_dir, self.escape_ids, choose_natural_direction(self.encoder, self.direction)
        )

    def corpus_ref(self) -> CorpusRef:
        """The corpus to encode."""
        return replace(self.ref(self.corpus, self.split), passages=self.passages)

    def load_corpus(self) -> Dataset:
        """The corpus to encode; with topics, it decides their direction."""
        from lexvl_anserini.data.dataset import load_reference

        return load_reference(self.corpus_ref())

    def target(self, encoder: str) -> Path:
        """The output."""
        suffix = "" if self.shard_id is None else f".part-{self.shard_id}-of-{self.shard_num}"
        return Path(self.output or f"impacts/{cli.file_name(self.corpus)}.{encoder}{suffix}")


@dataclass(frozen=True)
class EncoderOptions:
    """How the encoder is loaded and run."""

    tokenizer: cli.Tokenizer = None
    backbone_config: cli.BackboneConfig = None
    device: cli.Device = "auto"
    batch_size: cli.BatchSize = 32
    max_length: Annotated[
        int | None, typer.Option(min=1, help="Tokens read per document; per text where there is one limit.")
    ] = None
    query_max_length: Annotated[int | None, typer.Option(min=1, help="Tokens read per query.")] = None
    settings: cli.Settings = None

    def request(self, inputs: InputOptions, direction: str) -> EncoderSpec:
        """The encoder for a dataset of this direction, before it is loaded."""
        from lexvl_anserini.encoders.loading import EncoderSpec

        name, default_checkpoint = choose_encoder(inputs.corpus, direction, inputs.encoder)
        options = {**make_direction_option(name, direction), **cli.parse_settings(self.settings or ())}
        chosen = str(options.get("direction", direction))
        options |= make_length_options(name, chosen, self.max_length, self.query_max_length)
        checkpoint = inputs.checkpoint or default_checkpoint
        return EncoderSpec(name, checkpoint, self.tokenizer, self.backbone_config, self.device, options)


@dataclass(frozen=True)
class QuantiserOptions:
    """How weights become impacts."""

    quantiser: Annotated[
        Literal["calibrated", "fixed", "naver"], typer.Option(help="calibrated, fixed (with --scale) or naver.")
    ] = "calibrated"
    bits: Annotated[int, typer.Option(help="Bits of document impacts.")] = 8
    query_bits: Annotated[int, typer.Option(help="Bits of query weights; fewer where a score could reach 2^24.")] = 8
    scale: Annotated[float | None, typer.Option(help="Impacts per unit of weight, for fixed.")] = None
    percentile: Annotated[
        float, typer.Option(help="Percentile of the sample's maxima that becomes the largest impact.")
    ] = 100.0

    def load(self) -> Quantiser:
        """The quantiser."""
        from lexvl_anserini.ground.quantise import Quantiser

        return Quantiser.named(*astuple(self))


@dataclass(frozen=True)
class ShardOptions:
    """What the shards hold."""

    shard_format: Annotated[Literal["jsonl", "parquet"], typer.Option(help="jsonl or parquet.")] = "jsonl"
    shard_size: Annotated[int, typer.Option(min=1, help="Documents per shard.")] = 4096
    compress: Annotated[bool, typer.Option("--compress", help="Gzip the jsonl shards.")] = False
    store_contents: Annotated[
        bool, typer.Option("--store-contents", help="Keep each text beside its vector; topics always keep theirs.")
    ] = False
    store_metadata: Annotated[
        bool, typer.Option("--store-metadata", help="Keep each document's metadata beside its vector.")
    ] = False

    def layout(self) -> Layout:
        """The layout of the shards."""
        from lexvl_anserini.shards.layout import Layout

        return Layout(*astuple(self))


@cli.expand_options
def command(
    inputs: InputOptions,
    encoder: EncoderOptions,
    quantised: QuantiserOptions,
    shards: ShardOptions,
    overwrite: cli.Overwrite = False,
    dry_run: cli.DryRun = False,
    list_all: Annotated[bool, typer.Option("--list-encoders", help="List the encoders and stop.")] = False,
    described: Annotated[
        str | None, typer.Option("--describe", help="Describe one encoder and stop.", autocompletion=cli.encoder_names)
    ] = None,
    style: cli.Style = "text",
    verbose: cli.Verbose = False,
) -> None:
    """Encode a corpus (or topics) into vectors on disk.

    Example: python -m lexvl_anserini.encode --corpus demo --encoder bag-of-tokens --output impacts/demo
    """
    from lexvl_anserini.data.dataset import begun

    if list_all or described:
        typer.echo(describe_catalogue(described, style))
        return
    inputs.check()
    part, quantiser, layout, batch_size = inputs.part, quantised.load(), shards.layout(), encoder.batch_size
    if inputs.index and not dry_run:
        cli.print_rows(encode_for_index(inputs, encoder, quantiser, overwrite), style)
        return
    topics, dataset = load_topics(inputs.ref(inputs.topics)) if inputs.topics else None, inputs.load_corpus()
    if topics is None:
        dataset = begun(dataset)  # a corpus that cannot be read fails before the encoder is loaded
    model = encoder.request(inputs, dataset.direction).load()
    if remark := remark_on(model.checkpoint, inputs.corpus):
        log.warning(remark)
    target = inputs.target(model.name)
    if dry_run:
        rows: dict[str, Any] = {"output": str(target), "encoder": model.name, "checkpoint": model.checkpoint}
        rows["corpus"] = inputs.topics or inputs.corpus
        if topics is None:
            rows |= estimate(dataset, model, quantiser, layout, batch_size, inputs.on_error, part)
        else:
            rows["topics"] = topics.count()
    elif topics is not None:
        rows = encode_topics(model, topics, quantiser, target, batch_size, overwrite)
    else:
        options = {"quantiser": quantiser, "layout": layout, "batch_size": batch_size, "overwrite": overwrite}
        rows = encode_corpus(dataset, model, target, on_error=inputs.on_error, part=part, **options)
    cli.print_rows(rows, style)


def describe_catalogue(encoder: str | None, style: str) -> str:
    """Describes one encoder, or lists all."""
    from lexvl_anserini.encoders.describing import describe_encoder, format_description, format_listing, list_encoders

    if style == "json":
        return orjson.dumps(describe_encoder(encoder) if encoder else list_encoders()).decode()
    return format_description(describe_encoder(encoder)) if encoder else format_listing(list_encoders())


def encode_for_index(
    inputs: InputOptions, encoder: EncoderOptions, quantiser: Quantiser, overwrite: bool
) -> dict[str, Any]:
    """Encodes topics as a search of an index does, and returns the rows of the command."""
    from lexvl_anserini.engines.engine import index_path
    from lexvl_anserini.engines.index_folder import index_manifest
    from lexvl_anserini.queries.query_source import find_topic_source
    from lexvl_anserini.searching.search import EncoderChanges

    path, output = index_path(inputs.index or ""), Path(inputs.output or "")
    manifest, options = index_manifest(path), cli.parse_settings(encoder.settings or ())
    topics = find_topic_source(inputs.topics, path, manifest, inputs.data_dir, None, inputs.split)
    if topics.encoded:
        raise UsageError(f"{inputs.topics}: encoded queries already")
    model = EncoderChanges(inputs.checkpoint, encoder.tokenizer, encoder.device, options).load(manifest)
    return encode_topics(model, topics, quantiser, output, encoder.batch_size, overwrite, manifest)


def encode_corpus(dataset: Dataset, model: Encoder, target: Path, **options: Any) -> dict[str, Any]:
    """Encodes a corpus or a part of it with the options of `write_impacts`, and returns the rows of the command."""
    from lexvl_anserini.shards.writing import SKIPPED, write_impacts

    started = time.perf_counter()
    with cli.progress_bar(f"encode {dataset.name} with {model.name}", None) as progress:
        try:
            manifest = write_impacts(dataset, model, target, progress=progress, **options)
        except UnreadableImage as error:
            raise UnreadableImage(f"{error}; --on-error skip leaves such pictures out and lists them") from error
    if without := manifest.counts.skipped:
        log.warning("skipped, their images cannot be read: %d (listed in %s)", without, target / SKIPPED)
    return report(manifest, target, time.perf_counter() - started)


if __name__ == "__main__":
    cli.run(command)
