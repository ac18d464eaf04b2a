"""The other end of `processes`: python -m eval.efficiency.child MODULE:FUNCTION FD.

The first line of standard input holds the function's arguments. A function that returns `Ready` is asked again with
each further line, until the input ends. Answers are JSON lines on the file descriptor FD: standard output belongs to
whatever Java prints there.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any

import orjson

from eval.efficiency.processes import Ready, resident_bytes


def main() -> None:
    """Runs the function that the command line names."""
    name, answers = sys.argv[1], os.fdopen(int(sys.argv[2]), "wb")

    def tell(act: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        try:
            value = act(**arguments)
        except Exception as error:
            traceback.print_exc()
            answers.write(orjson.dumps({"error": str(error) or type(error).__name__}) + b"\n")
            answers.flush()
            return None
        told = value.about if isinstance(value, Ready) else value
        answers.write(orjson.dumps({"result": {"value": told, "peak_bytes": resident_bytes()}}) + b"\n")
        answers.flush()
        return value

    module, _, function = name.partition(":")
    lines = sys.stdin.buffer
    value = tell(getattr(import_module(module), function), orjson.loads(lines.readline()))
    if isinstance(value, Ready):
        for line in lines:
            tell(value.answer, orjson.loads(line))


if __name__ == "__main__":
    main()
