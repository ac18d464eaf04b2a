"""What a process that reads pages must survive; processes of their own import this module."""

import os
import signal
import time


def crash():
    os.kill(os.getpid(), signal.SIGSEGV)


def compute():
    while True:
        pass


def compute_a_second():
    end = time.process_time() + 1
    while time.process_time() < end:
        pass
    return end


def wait():
    time.sleep(3600)


def take_memory():
    return len(bytearray(1 << 40))


def fail():
    raise KeyError("of another library")


def limit_of_memory():
    import resource

    return resource.getrlimit(resource.RLIMIT_DATA)[0]
