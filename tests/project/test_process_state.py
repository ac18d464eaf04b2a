"""The calls of the library leave a user's process as it was: threads, arithmetic, random numbers, signals, settings."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from invoking import read_output

ROOT = Path(__file__).parents[2]

# Libraries of a user who imports ours after them.
LOADED = ("faiss", "numba", "onnxruntime", "pyarrow", "PIL.ImageFile", "sentence_transformers", "accelerate", "sklearn")

# What stays: Pillow's warnings are silenced for all threads; Java has handlers of its own, but Python's of Ctrl-C; the
# measures of ranx run on its threads of numba, because those of OpenMP would set the number that torch shares.
REMAINS = {"encode pictures": ["warnings"], "index lexical": ["signals of the kernel"], "evaluate": ["numba layer"]}


def state() -> dict[str, Any]:
    """What one library's call can change for the others, by name; the values compare by `==`."""
    import csv
    import decimal
    import gc
    import locale
    import logging
    import multiprocessing
    import random
    import resource
    import signal
    import socket
    import threading
    import warnings

    import faiss
    import numba
    import numpy as np
    import PIL.Image
    import PIL.ImageFile
    import pyarrow as pa
    import torch
    from threadpoolctl import threadpool_info
    from transformers.utils import logging as of_transformers

    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    pools = {pool["filepath"]: pool["num_threads"] for pool in threadpool_info()}
    loggers = {name: log for name, log in logging.root.manager.loggerDict.items() if isinstance(log, logging.Logger)}
    smallest, backends, cudnn = np.float32(1.2e-38), torch.backends, torch.backends.cudnn
    os.umask(umask := os.umask(0))
    return {
        **{f"threads of {Path(path).name}": number for path, number in pools.items()},
        **{f"level of logger {name}": log.level for name, log in loggers.items() if log.level},
        **{f"${name}": value for name, value in os.environ.items()},
        **{f"signal {number}": str(signal.getsignal(number)) for number in signal.valid_signals()},
        "signals of the kernel": [status[name].strip() for name in ("SigBlk", "SigIgn", "SigCgt")],
        "torch threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "torch numbers": (torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled()),
        "torch arithmetic": (torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()),
        "torch kernels": (backends.mkldnn.enabled, backends.cuda.matmul.allow_tf32),
        "cudnn": (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32),
        "torch small numbers": float(torch.tensor(1.2e-38) / 4),
        "numpy small numbers": float(smallest / np.float32(4)),
        "numpy rounding": float(np.float32(1) + np.float32(2**-24) * np.float32(1.5)),
        "numpy errors": np.geterr(),
        "numpy printing": str(np.get_printoptions()),
        "torch random": torch.get_rng_state().numpy().tobytes(),
        "numpy random": repr(np.random.get_state()),
        "python random": random.getstate(),
        "faiss threads": faiss.omp_get_max_threads(),
        "numba threads": numba.get_num_threads(),
        "numba layer": numba.config.THREADING_LAYER,
        "arrow threads": (pa.cpu_count(), pa.io_thread_count(), pa.default_memory_pool().backend_name),
        "pictures": (PIL.Image.MAX_IMAGE_PIXELS, PIL.ImageFile.LOAD_TRUNCATED_IMAGES, PIL.ImageFile.MAXBLOCK),
        "transformers": (of_transformers.get_verbosity(), of_transformers.is_progress_bar_enabled()),
        "warnings": list(map(str, warnings.filters)),
        "root logger": (logging.root.level, list(logging.root.handlers), logging.root.manager.disable),
        "locale": locale.setlocale(locale.LC_ALL),
        "files": (Path.cwd(), umask, csv.field_size_limit(), tuple(sys.path)),
        "interpreter": (sys.getrecursionlimit(), sys.getswitchinterval(), sys.get_int_max_str_digits()),
        "hooks": (sys.excepthook, sys.displayhook, threading.excepthook, sys.unraisablehook),
        "garbage": (gc.isenabled(), gc.get_threshold()),
        "decimals": str(decimal.getcontext()),
        "processes": multiprocessing.get_start_method(allow_none=True),
        "limits": [resource.getrlimit(limit) for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_STACK)],
        "cores": (sorted(os.sched_getaffinity(0)), os.getpriority(os.PRIO_PROCESS, 0)),
        "sockets": socket.getdefaulttimeout(),
    }


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, list[str]]:
    """The entries that differ, in at most 200 letters each; a pool of a library that was loaded meanwhile is none."""
    names = [name for name in {**after, **before} if name in before or not name.startswith("threads of ")]
    differ = [name for name in names if before.get(name) != after.get(name)]
    return {name: [repr(values.get(name))[-200:] for values in (before, after)] for name in differ}


def line(
    name: str, folder: Path, dataset: Any, load: Callable[[], Any], topics: Sequence[Any]
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """An encoder is loaded and encodes; its shards are indexed and searched."""
    from lexvl_anserini.searching.building import build_index
    from lexvl_anserini.searching.searcher import search_index
    from lexvl_anserini.shards.writing import write_impacts

    shards, index = folder / "shards" / name, folder / "indexes" / name

    def search(threads: int) -> None:
        assert all(list(search_index(index, topics, 5, threads=threads, model=load())))

    yield f"encode {name}", lambda: write_impacts(dataset, load(), shards)
    yield f"index {name}", lambda: build_index(shards, index, threads=3)
    for threads in (1, 2):
        yield f"search {name} with {threads} threads", partial(search, threads)


def texts(folder: Path) -> tuple[Any, list[Any]]:
    from corpus_folders import beir_folder, json_lines

    from lexvl_anserini.data.dataset import load_dataset
    from lexvl_anserini.ground.records import Topic

    corpus = beir_folder(folder / "beir", json_lines({f"d{n}": f"a red boat number {n} on the sea" for n in range(20)}))
    return load_dataset(f"beir:{corpus}"), [Topic(str(number), f"a red boat {number}") for number in range(40)]


def calls(folder: Path, golden: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The main calls by name, each after those that it needs."""
    from PIL import Image
    from tiny_encoders import BERT, made_dense

    from eval.measures.metrics import evaluate
    from lexvl_anserini.data.dataset import load_dataset
    from lexvl_anserini.encoders.loading import load_encoder
    from lexvl_anserini.ground.records import Qrel
    from lexvl_anserini.searching.rescoring import rerank_lists
    from lexvl_anserini.searching.searcher import Searcher, search_index

    corpus, topics = texts(folder)
    (folder / "pictures").mkdir()
    for colour in ("red", "green", "blue"):
        Image.new("RGB", (40, 30), colour).save(folder / f"pictures/{colour}.png")
    encoders: Mapping[str, tuple[Any, ...]] = {
        "lexical": (corpus, "splade", golden / BERT),
        "dense": (corpus, "sentence", made_dense(golden, folder)),
        "pictures": (load_dataset(f"pictures:{folder / 'pictures'}"), "vdr-crossmodal", "demo-vdr"),
        "words": (corpus, "bm25", None),
    }

    @cache
    def load(name: str) -> Any:
        _, encoder, checkpoint = encoders[name]
        return load_encoder(encoder, checkpoint and str(checkpoint), device="cpu")

    def search_words() -> list[Any]:
        return list(search_index(folder / "indexes/words", topics, 5))

    def ask() -> None:
        with Searcher(folder / "indexes/lexical") as searcher:
            assert searcher.search("a red boat")

    def rerank() -> None:
        of_topics = {topic.query_id: ranked for topic, ranked in zip(topics, search_words(), strict=True)}
        assert list(rerank_lists(topics, of_topics, load("dense"), corpus.documents))

    for name, (dataset, *_) in encoders.items():
        yield from line(name, folder, dataset, partial(load, name), topics)
    yield "ask", ask
    yield "rerank", rerank
    yield "evaluate", lambda: evaluate(search_words()[0], [Qrel("0", "d1", 1)], ["nDCG@10", "AP"])


def report(calls: Iterable[tuple[str, Callable[[], Any]]]) -> dict[str, Any]:
    for library in LOADED:
        with suppress(ImportError):
            import_module(library)
    changed = {}
    for name, call in calls:
        before = state()
        call()
        if differ := changes(before, state()):
            changed[name] = differ
    return changed


def assert_unchanged(module: str, folder: Path, golden: Path, remains: Mapping[str, list[str]]) -> None:
    """The `calls` of a module of tests, in a process with two threads, so that a call that sets one shows."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONPATH": paths}
    command = [sys.executable, __file__, module, str(folder), str(golden)]
    changed = json.loads(read_output(command, env=environment, cwd=ROOT).splitlines()[-1])
    assert {name: list(differ) for name, differ in changed.items()} == remains, changed


def test_calls_leave_the_process_as_it_was(tmp_path: Path, golden: Path) -> None:
    assert_unchanged(__name__, tmp_path, golden, REMAINS)


if __name__ == "__main__":
    module, *folders = sys.argv[1:]
    print(json.dumps(report(import_module(module).calls(*map(Path, folders)))))
