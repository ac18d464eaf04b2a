"""What a worker must survive; processes of their own import this module."""

from __future__ import annotations

import os
import signal


def crash():
    os.kill(os.getpid(), signal.SIGSEGV)


def hang():
    while True:
        pass


def take_memory():
    return len(bytearray(1 << 40))


def fail():
    raise KeyError("of another library")


def limit_of_memory():
    import resource

    return resource.getrlimit(resource.RLIMIT_DATA)[0]
