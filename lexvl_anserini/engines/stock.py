"""`prepare` makes stock Pyserini importable in a process: its Java, its environment, and its catalogues of indexes."""

from __future__ import annotations

import os
import sys
from collections import UserDict
from functools import cached_property
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from lexvl_anserini.engines import jvm

CATALOGUES = "pyserini.prebuilt_index_info"  # the module of Pyserini's dictionaries of the indexes that it can download


class Catalogue(UserDict[str, Any]):
    """One of these dictionaries, loaded when it is first read: Pyserini 2.4 downloads some when it is imported."""

    def __init__(self, name: str, module: Catalogues):
        self.name, self.module = name, module

    @cached_property
    def data(self) -> dict[str, Any]:  # type: ignore[override]  # UserDict reads it in all its methods
        """Pyserini's own dictionary."""
        return getattr(self.module.loaded, self.name)


class Catalogues(ModuleType):
    """Stands for the module CATALOGUES until one of its dictionaries is read."""

    def __init__(self, spec: ModuleSpec):
        super().__init__(spec.name)
        self.__spec__ = spec

    @cached_property
    def loaded(self) -> ModuleType:
        """Pyserini's own module."""
        assert self.__spec__ and self.__spec__.loader
        module = module_from_spec(self.__spec__)
        self.__spec__.loader.exec_module(module)
        return module

    def __getattr__(self, name: str) -> Any:
        if not name.isupper():
            raise AttributeError(name)
        return Catalogue(name, self)


def prepare() -> None:
    """Makes `import pyserini.search.lucene` work in this process; call it before the import.

    It starts Java as our own engine does, with Java's own default heap unless $LEXVL_JAVA_HEAP is set. It puts that
    Java first on $PATH, for the `java` that Pyserini's trec_eval calls. It sets $OPENAI_API_KEY, if it is unset, to a
    word that is no key: Pyserini 1.6 creates a client of OpenAI when it is imported. The catalogues of indexes that
    Pyserini 2.4 downloads when it is imported are downloaded when one is looked up.
    """
    os.environ.setdefault("OPENAI_API_KEY", "none")
    quarter = f"{jvm.measure_quarter_memory() >> 20}m"
    # Only for the start: our own commands that this process may start have their own default.
    with jvm.set_environment(LEXVL_JAVA_HEAP=os.environ.get("LEXVL_JAVA_HEAP", quarter)):
        jvm.start()
    programs, path = str(jvm.find_java().home / "bin"), os.environ.get("PATH", "")
    if path.split(os.pathsep)[0] != programs:
        os.environ["PATH"] = f"{programs}{os.pathsep}{path}"
    _postpone_catalogues()


def _postpone_catalogues() -> None:
    """Stands in for the catalogues where importing them downloads; other releases have them in the module itself."""
    spec = None if CATALOGUES in sys.modules else find_spec(CATALOGUES)
    if spec and spec.origin and "urlopen" in Path(spec.origin).read_text(encoding="utf-8"):
        sys.modules[CATALOGUES] = Catalogues(spec)
