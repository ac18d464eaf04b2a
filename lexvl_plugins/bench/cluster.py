"""The line on a cluster of several nodes of this machine, against one process: equal bytes, and what each step takes.

DIR/pictures.tar, topics.tsv, plan.json     drawn pictures of the demo, their captions, the plan
DIR/local/, DIR/ray/                        shards/, index/ and run.trec of each
"""

from __future__ import annotations

import logging
import os
import pickle
import secrets
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice, product
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer

from lexvl_anserini.cli import Style, Verbose, expand_options, print_rows, run
from lexvl_anserini.data.corpora.captioned import list_demo_files, read_karpathy
from lexvl_anserini.data.dataset import load_reference
from lexvl_anserini.encoders.loading import EncoderSpec
from lexvl_anserini.engines.index_folder import REPORT, BuiltIndex, index_manifest, read_report
from lexvl_anserini.ground.errors import LexvlError, UnknownName, UsageError
from lexvl_anserini.ground.files import atomic_write, compute_sha256, exclusive
from lexvl_anserini.ground.progress import Progress, progress_bar
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.ground.records import CorpusRef
from lexvl_anserini.queries.query_source import find_topic_source
from lexvl_anserini.runs.order import RankedList, merge_lists
from lexvl_anserini.runs.trec import ensure_run
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.searching.index_runs import plan_run, write_index_run
from lexvl_anserini.searching.search import Search
from lexvl_anserini.searching.searcher import Searcher
from lexvl_anserini.shards.layout import Layout
from lexvl_plugins.bench.processes import Stopwatch, time_each
from lexvl_plugins.cluster.options import RunnerOptions
from lexvl_plugins.cluster.parts import PartsRequest, encode_parts
from lexvl_plugins.cluster.plans import name_listing, plan_corpus
from lexvl_plugins.cluster.ray_cluster import OBJECT_STORE, import_ray
from lexvl_plugins.cluster.runners import run_on

# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("lexvl_plugins.bench.cluster")
# Pictures in the package; more of them are of the training split, which `python tools/world draw train` draws.
PACKAGED = 1000
ENCODER, CHECKPOINT = "vdr-crossmodal", "demo-vdr"
HITS = 100
# Pictures whose captions are the topics.
ASKED = 200
# Lists that are merged to measure it, and their length.
LISTS = (10, 100, 1000)
MERGED_HITS = (10, 1000)
# A node has one core, and room for requests and answers.
NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": OBJECT_STORE}
# A node that is lost is noticed after two seconds instead of twenty.
CHECKS = {"initial_delay_ms": 0, "period_ms": 500, "timeout_ms": 1000, "failure_threshold": 2}


@dataclass(frozen=True)
class ClusterDemoOptions:
    """What is shown, and where it is written."""

    output: Annotated[Path, typer.Option(help="Folder to write; finished files stay.")] = Path("lexvl-cluster")
    pictures: Annotated[int, typer.Option(min=8, max=20_000, help="Pictures of the demo.")] = 400
    parts: Annotated[int, typer.Option(min=2, help="Parts of the corpus, and partitions of the index.")] = 8
    nodes: Annotated[int, typer.Option(min=2, help="Nodes of the cluster, one core each.")] = 3
    kill: Annotated[bool, typer.Option("--kill", help="Kill a node in the middle of each step.")] = False

    def file(self, name: str) -> Path:
        """A file or folder of the output; the cluster's processes may have another working folder."""
        return self.output.absolute() / name


def encode(settings: ClusterDemoOptions, home: Path, progress: Progress) -> None:
    """Encodes all parts."""
    places, layout = (settings.file("plan.json"), home / "shards"), Layout(shard_format="parquet")
    encode_parts(PartsRequest(*places, *name_inputs(settings), Quantiser(), layout), progress)


def index(settings: ClusterDemoOptions, home: Path, progress: Progress) -> None:
    """Builds an index in partitions."""
    build_index(home / "shards", home / "index", threads=1, engine="partitions", progress=progress)


def search(settings: ClusterDemoOptions, home: Path, progress: Progress) -> None:
    """Searches all topics and writes the run."""
    manifest = index_manifest(home / "index")
    searcher = Searcher(BuiltIndex(home / "index", manifest))
    source = find_topic_source(str(settings.file("topics.tsv")), home / "index", manifest, None, None)
    request = plan_run(searcher, source, HITS, False)
    run = home / "run.trec"
    ensure_run(run, request, True, lambda: write_index_run(searcher, source, Search(), request, run, progress))


# The steps of the line, each into a folder.
Step = Callable[[ClusterDemoOptions, Path, Progress], None]
STEPS: Mapping[str, Step] = {"encode": encode, "index": index, "search": search}


def name_inputs(settings: ClusterDemoOptions) -> tuple[CorpusRef, Any]:
    """The pictures, and the demo's pair."""
    corpus = CorpusRef(f"folder:{settings.file('pictures.tar')}", direction="text-to-image")
    return corpus, EncoderSpec(ENCODER, CHECKPOINT, device="cpu", options={"direction": "text-to-image"})


def prepare(settings: ClusterDemoOptions) -> None:
    """Copies the pictures, writes their captions as topics, and plans the parts."""
    import torch

    captions = copy_pictures(settings.file("pictures.tar"), settings.pictures)
    with atomic_write(settings.file("topics.tsv")) as out:
        for image in islice(read_karpathy(captions), min(ASKED, settings.pictures)):
            out.writelines(f"{caption.caption_id}\t{caption.text}\n".encode() for caption in image.captions)
    torch.set_num_threads(1)
    (corpus, encoder), file = name_inputs(settings), settings.file("plan.json")
    options: dict[str, Any] = {"layout": Layout(shard_format="parquet"), "listing": name_listing(file)}
    plan_corpus(load_reference(corpus), encoder.load(), settings.parts, **options).write(file)


def copy_pictures(path: Path, count: int) -> Path:
    """Writes the first pictures of a split of the demo that has so many as a tar; returns the file of its captions."""
    captions, pictures = list_demo_files("test" if count <= PACKAGED else "train")
    with (
        tarfile.open(pictures) as source,
        atomic_write(path) as out,
        tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for member in islice(source, count):
            archive.addfile(member, source.extractfile(member))
    return captions


@contextmanager
def local_cluster(nodes: int) -> Iterator[Any]:
    """A cluster of several nodes of this machine, on the loopback interface."""
    import_ray(new=True)
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    from ray.cluster_utils import Cluster

    noticing = {f"health_check_{name}": value for name, value in CHECKS.items()}
    cluster = Cluster(True, head_node_args={**NODE, "include_dashboard": False, "_system_config": noticing})
    try:
        for _ in range(nodes - 1):
            cluster.add_node(**NODE)
        yield cluster
    finally:
        cluster.shutdown()


def replace_node(cluster: Any) -> None:
    """Kills a node with SIGKILL, and starts another."""
    node = min(cluster.worker_nodes, key=lambda node: node.node_id)
    log.info("killing node %s", node.node_id[:8])
    cluster.remove_node(node, allow_graceful=False)
    cluster.add_node(**NODE)


def act_at_half(total: int, act: Callable[[], None], progress: Progress) -> Progress:
    """The progress callback, which acts once when half of the total is done."""
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        before, done = done, done + count
        if before < total / 2 <= done:
            act()
        progress(count)

    return advance


def do_steps(settings: ClusterDemoOptions, name: str, at_half: Callable[[], None] | None = None) -> dict[str, float]:
    """Does all steps into a folder, by the runner in use; returns seconds, also of this process on the CPU."""
    seconds: dict[str, float] = {}
    topics = settings.file("topics.tsv").read_bytes().count(b"\n")
    for step, work in STEPS.items():
        total = topics if step == "search" else settings.pictures
        with progress_bar(f"{name}: {step}", total, "done") as progress, Stopwatch() as watch:
            advance = act_at_half(total, at_half, progress) if at_half else progress
            work(settings, settings.file(name), advance)
        seconds[f"{name}_{step}_seconds"] = round(watch.wall_s, 2)
        seconds[f"{name}_{step}_cpu_seconds"] = round(watch.cpu_s, 2)
        log.info("%-6s %-7s %8.1f s", name, step, watch.wall_s)
    return seconds


def compare_results(settings: ClusterDemoOptions) -> dict[str, Any]:
    """The sizes of what the cluster made; an error where that differs from what one process made."""
    from lexvl_plugins.exchange.importing import compute_digest

    local, ray = settings.file("local"), settings.file("ray")
    reports = [read_report(home / "index") for home in (local, ray)]
    counts = [tuple(report[key] for key in ("documents", "postings", "partitions", "collection")) for report in reports]
    documents, postings = counts[1][:2]
    equal = {
        "shards": compute_digest(local / "shards") == compute_digest(ray / "shards"),
        "index": counts[0] == counts[1] and documents == settings.pictures,
        "run": compute_sha256(local / "run.trec") == compute_sha256(ray / "run.trec"),
    }
    if differing := [name for name, same in equal.items() if not same]:
        raise LexvlError(f"{settings.output}: {differing} of the cluster differ from those of one process")
    size = {
        "shard": sum(path.stat().st_size for path in (ray / "shards").rglob("*") if path.is_file()),
        "index": reports[1]["bytes"],
        "resident": sum(read_report(path.parent).resident_bytes for path in (ray / "index").glob(f"*/{REPORT}")),
    }
    sizes = {f"{name}_bytes_a_picture": round(total / documents, 1) for name, total in size.items()}
    return {"documents": documents, "postings": postings, **sizes, "equal": ", ".join(equal)}


def measure_merging(
    counts: Sequence[int] = LISTS, lengths: Sequence[int] = MERGED_HITS, repeats: int = 5
) -> dict[str, Any]:
    """CPU milliseconds, the median of repeats, of unpacking and merging the lists of one query from many workers."""
    chance, costs = np.random.default_rng(0), dict[str, Any]()
    for hits, count in product(lengths, counts):
        packed = []
        for number, scores in enumerate(-np.sort(-chance.integers(1, 1 << 20, (count, hits)), axis=1)):
            ids = "".join(f"{number:04}-{row:06}\n" for row in range(hits)).encode()
            packed.append(pickle.dumps(RankedList("q", ids, scores.astype(np.float64))))
        received = list(map(pickle.loads, packed))
        unpacking = time_each(lambda texts: list(map(pickle.loads, texts)), [packed] * repeats)["cpu_s"]
        merging = time_each(partial(merge_lists, hits=hits), [received] * repeats)["cpu_s"]
        costs[f"unpack_{count}x{hits}_ms"] = round(median(unpacking) * 1000, 2)
        costs[f"merge_{count}x{hits}_ms"] = round(median(merging) * 1000, 2)
    return costs


def demo(settings: ClusterDemoOptions) -> dict[str, Any]:
    """Does the line by one process and by a cluster, and compares; returns the rows of the command."""
    if settings.parts > settings.pictures:
        raise UsageError(f"{settings.parts} parts of {settings.pictures} pictures: expected at most one part a picture")
    import_ray(new=True)  # before any work, if it is missing
    with exclusive(settings.output):
        prepare(settings)
        seconds = do_steps(settings, "local")
        with local_cluster(settings.nodes) as cluster, run_on(RunnerOptions("ray", cluster.address)):
            at_half = partial(replace_node, cluster) if settings.kill else None
            seconds |= do_steps(settings, "ray", at_half)
        rows = compare_results(settings)
    killed = len(STEPS) if settings.kill else 0
    return {"nodes": settings.nodes, "parts": settings.parts, "nodes_killed": killed, **rows, **seconds}


@expand_options
def command(
    what: Annotated[
        str, typer.Argument(help="demo: drawn pictures, encoded, indexed and searched; merge: the cost of many lists.")
    ],
    settings: ClusterDemoOptions,
    style: Style = "text",
    verbose: Verbose = False,
) -> None:
    """Start a Ray cluster of several nodes on this machine, and compare its work with that of one process.

    Example: lexvl cluster-efficiency demo --pictures 400 --nodes 3 --kill
    """
    actions: Mapping[str, Callable[[], dict[str, Any]]] = {"demo": partial(demo, settings), "merge": measure_merging}
    if what not in actions:
        raise UnknownName("action", what, actions)
    print_rows(actions[what](), style)


if __name__ == "__main__":
    run(command)
