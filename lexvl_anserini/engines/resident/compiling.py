"""Compiles functions by numba; keeps their code beside the module, in the user's cache folder or `$NUMBA_CACHE_DIR`.

numba's own files of code have no checksum, and an index in which two processes that compile at once can give one file
to two signatures. Here each signature has a file, named by it and with a checksum; one that is damaged counts as none.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

from llvmlite import ir
from numba import njit, types
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

Function = TypeVar("Function", bound=Callable[..., Any])

CHECKSUM_BYTES = 4


def kernel(function: Function) -> Function:
    """Compiles a function at its first call, without Python's lock; keeps the code on disk where that is possible."""
    compiled: Any = njit(nogil=True, error_model="numpy")(function)
    try:
        compiled._cache = KernelCache(function)
    except RuntimeError:  # none of these folders can be written
        pass
    except (AttributeError, TypeError):  # a numba whose cache is built in another way: its own files do
        compiled.enable_caching()
    return cast("Function", compiled)


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


class KernelCache(FunctionCache):
    """numba's cache of a function, with our files."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__(function)
        stamp = self._impl.locator.get_source_stamp()
        self._cache_file = CodeFiles(self._cache_path, self._impl.filename_base, stamp)
        self._cache_file._path(None)  # raises here, and not in a search, where numba has no such names


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
        """Writes the code for a key; a disk that is full or read-only costs time only."""
        content = self._dump((self._source_stamp, key, data))
        with suppress(OSError), self._open_for_write(str(self._path(key))) as out:
            out.write(content + zlib.crc32(content).to_bytes(CHECKSUM_BYTES, "big"))

    def _path(self, key: Any) -> Path:
        """The file of a key; of another version of numba it is another one."""
        digest = sha256(repr((self._version, key)).encode()).hexdigest()
        return Path(self._data_path(self._data_name(int(digest[:12], 16))))
