"""What all tests share: an environment without network or keys, the shared data's folder, the tiny checkpoints."""

import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from declared import GOLDEN, SHARED
from hypothesis import HealthCheck, settings

pytest_plugins = ["outcomes", "rounds"]

# Before any test imports a model library.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.pop("OPENAI_API_KEY", None)
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ["OMP_NUM_THREADS"] = "1"  # with more, sums differ in their last bits by the load

# No example fails because the machine is busy; a fixture of a function that examples share is one that none changes.
LENIENT = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
settings.register_profile("lexvl", max_examples=50, deadline=None, suppress_health_check=LENIENT)
settings.load_profile("lexvl")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips tests of the shared data where it does not lie beside the checkout."""
    if SHARED.is_dir():
        return
    skip = pytest.mark.skip(reason="the shared evaluation data does not lie beside the checkout (../shared)")
    for item in items:
        if "shared" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def threads_of_torch() -> Iterator[None]:
    """torch has one thread again after a test that sets another number."""
    yield
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def levels_of_loggers() -> Iterator[None]:
    """What is logged does not depend on a command that an earlier test ran, whose level stays in the process."""
    yield
    for package in ("lexvl_anserini", "lexvl_eval", "lexvl_plugins"):
        logging.getLogger(package).setLevel(logging.NOTSET)


@pytest.fixture(scope="session", autouse=True)
def unsynced() -> Iterator[None]:
    """Tests need no power cut to be survived, and fsync is slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session")
def shared() -> Path:
    """The evaluation data beside the checkout."""
    return SHARED


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of tests/golden in which files that are stored once appear everywhere they belong."""
    folder = tmp_path_factory.mktemp("golden")
    for part in ("common", "splade", "sentence_transformers_sparse", "vdr"):
        shutil.copytree(GOLDEN / part, folder / part)
    for path, source in json.loads((GOLDEN / "common" / "same_files.json").read_text()).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / source, folder / path)
    return folder


@pytest.fixture(scope="session")
def load(golden: Path) -> Callable[..., Any]:
    """`load(name, checkpoint below golden, **options)`: an encoder on the CPU, loaded once per session."""
    from lexvl_anserini.encoders.loading import load_encoder

    loaded: dict[Any, Any] = {}

    def load(name: str, checkpoint: str, **options: Any) -> Any:
        key = (name, checkpoint, *sorted(options.items()))
        if key not in loaded:
            loaded[key] = load_encoder(name, str(golden / checkpoint), device="cpu", **options)
        return loaded[key]

    return load
