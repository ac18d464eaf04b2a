"""Compiles functions by numba; keeps their code in the user's cache folder or `$NUMBA_CACHE_DIR`.

numba names the folder of a function's code by the path of its module, so that each checkout and each environment
compiles again. Here the content of the sources names it. numba's own files of code have no checksum, and an index in
which two processes that compile at once can give one file to two signatures. Here each signature has a file, named by
it and with a checksum; one that is damaged counts as none.
"""

from __future__ import annotations

import pickle
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, cast

from llvmlite import ir
from numba import njit, types
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, NullCache, _CacheLocator
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from lexvl_anserini.ground.machine import compute_source_digest, find_code_folder

Function = TypeVar("Function", bound=Callable[..., Any])

# Options of the compiler; C does not call kernels.
OPTIONS: Mapping[str, Any] = {"nogil": True, "error_model": "numpy", "cache": True, "no_cfunc_wrapper": True}

CHECKSUM_BYTES = 4

# Folders of one package's code that are kept: as many checkouts and environments do not compile in turns.
MOST_VERSIONS = 8


def kernel(function: Function) -> Function:
    """Compiles a function at its first call, without Python's lock; keeps the code on disk where that is possible."""
    with keep_by_content():
        return cast("Function", njit(**OPTIONS)(function))


@contextmanager
def keep_by_content() -> Iterator[None]:
    """Functions that are decorated inside by `njit(cache=True)`, also those of other packages, keep their code here."""
    dispatcher: Any = import_module("numba.core.dispatcher")
    own = dispatcher.FunctionCache
    dispatcher.FunctionCache = make_cache
    try:
        yield
    finally:
        dispatcher.FunctionCache = own


def make_cache(function: Callable[..., Any]) -> Any:
    """Numba's cache of a function, with our folder and our files."""
    try:
        return KernelCache(function)
    except (AttributeError, TypeError):  # a numba whose cache is built in another way: its own files do
        return FunctionCache(function)
    except RuntimeError:  # a function without a file
        return NullCache()


def _prefetch(context: Any, array: Any, place: Any) -> Any:
    """The types and the code of `prefetch`."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number, start = ir.IntType(32), make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.gep(start, [arguments[1]])
        called = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [address.type], called)
        # To be read, often, as data.
        builder.call(function, [address, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, place), code


# Has a place of an array, or outside of it, read into the nearest cache, and does not wait for it.
prefetch = cast("Callable[[Any, Any], None]", intrinsic(_prefetch))


class SourceLocator(_CacheLocator):
    """Names the folder of a function's code by the sources of the function's package and by the version of numba."""

    def __init__(self, function: Callable[..., Any], file: str):
        self._py_file = file  # numba names it in a warning
        self._line = function.__code__.co_firstlineno
        self._package = Path(file).parent

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> SourceLocator | None:
        """Numba's way to make a locator; None for a function without a file."""
        return cls(py_func, py_file) if Path(py_file).exists() else None

    def get_cache_path(self) -> str:
        """The folder."""
        return str(find_code_folder(self._package))

    def get_source_stamp(self) -> str:
        """The digest of all sources that the function can call."""
        return compute_source_digest(self._package)

    def get_disambiguator(self) -> str:
        """What tells functions of one name apart."""
        return str(self._line)


def remove_oldest(kernels: Path, package: str) -> None:
    """Removes the code of a package's former sources, but for the newest folders."""
    folders = sorted(kernels.glob(f"{package}-*"), key=lambda folder: folder.stat().st_mtime)
    for folder in folders[: -MOST_VERSIONS + 1]:
        shutil.rmtree(folder, ignore_errors=True)


class KernelCacheImpl(CompileResultCacheImpl):
    """numba's form of the code, in our folder."""

    _locator_classes = [SourceLocator]


class KernelCache(FunctionCache):
    """The code of a function on the disk."""

    _impl_class = KernelCacheImpl

    def __init__(self, function: Callable[..., Any]):
        super().__init__(function)
        self._cache_file = CodeFiles(self._cache_path, self._impl.filename_base, self._impl.locator.get_source_stamp())
        self._cache_file._path(None)  # raises here, and not in a search, where numba has no such names

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keeps the code; a folder that cannot be made or written costs time only."""
        folder = Path(self._cache_path)
        with suppress(OSError):
            if not folder.exists():
                remove_oldest(folder.parent, folder.name.rpartition("-")[0])
            super().save_overload(sig, data)


class CodeFiles(IndexDataCacheFile):
    """The code of a function, a file per signature: source stamp, key and code as a pickle, then its CRC-32."""

    def load(self, key: Any) -> Any:
        """The code for a key; None where there is no sound file of this source."""
        try:
            raw = self._path(key).read_bytes()
        except OSError:
            return None
        content, checksum = raw[:-CHECKSUM_BYTES], raw[-CHECKSUM_BYTES:]
        if len(raw) <= CHECKSUM_BYTES or zlib.crc32(content) != int.from_bytes(checksum, "big"):
            return None
        *known, code = pickle.loads(content)
        return code if known == [self._source_stamp, key] else None

    def save(self, key: Any, data: Any) -> None:
        """Writes the code for a key."""
        content = self._dump((self._source_stamp, key, data))
        with self._open_for_write(str(self._path(key))) as out:
            out.write(content + zlib.crc32(content).to_bytes(CHECKSUM_BYTES, "big"))

    def _path(self, key: Any) -> Path:
        """The file of a key; of another version of numba it is another one."""
        digest = sha256(repr((self._version, key)).encode()).hexdigest()
        return Path(self._data_path(self._data_name(int(digest[:12], 16))))
