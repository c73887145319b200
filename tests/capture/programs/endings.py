"""A training run of 100 short steps on one or two ranks, whose last rank ends as the first argument says.

What it writes beside the run directory: into ``steps.<rank>`` when each of its steps ended, by the recording's clock.
"""

import code
import contextlib
import gc
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path

import profilerkit

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
STEPS = 100
WHERE = sys.argv[2] if len(sys.argv) > 2 else "run"
LOG = os.open(f"steps.{RANK}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def profile():
    return profilerkit.profile(WHERE, deep=False, nvml=False, host=False, analyze=False)


def exchange():
    """One collective where there are two ranks; both wait for each other in it."""
    if WORLD > 1:
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("gloo")
        dist.all_reduce(dist.torch.ones(8))


def train(prof, steps=STEPS):
    for _ in prof.wrap(range(steps)):
        time.sleep(0.01)
        exchange()
        os.write(LOG, b"%d\n" % time.perf_counter_ns())


def train_without_end(prof):
    while True:
        train(prof)


def raise_error():
    raise ValueError("lost")


def allocate():
    import torch

    torch.empty(10**15)


def exhaust_address_space():
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20),) * 2)
    bytearray(1 << 30)


def in_child(prof, leave):
    """Fork; the child goes on training and leaves by ``leave``."""
    import warnings

    warnings.simplefilter("ignore", DeprecationWarning)
    child = os.fork()
    if child == 0:
        for _ in prof.wrap(range(5)):
            prof.step()
        leave()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def fill_the_disk(prof):
    """Take all the room there is, then train on."""
    with (Path(WHERE).parent / "filler").open("ab", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(bytes(512))
    train(prof, 3 * STEPS)


def kill(number):
    return lambda _prof: (os.kill(os.getpid(), number), time.sleep(60))


#: What the last rank does after its steps, inside the block.
INSIDE = {
    "finish": lambda _prof: None,
    "exception": lambda _prof: raise_error(),
    "exit": lambda _prof: sys.exit(3),
    "exit well": lambda _prof: sys.exit(),
    "os._exit": lambda _prof: os._exit(5),
    "SIGTERM": kill(signal.SIGTERM),
    "SIGINT": kill(signal.SIGINT),
    "SIGKILL": kill(signal.SIGKILL),
    "SIGSEGV": kill(signal.SIGSEGV),
    "out of memory": lambda _prof: allocate(),
    "MemoryError": lambda _prof: exhaust_address_space(),
    "full disk": fill_the_disk,
    "file size limit": train,
    "read-only directory": lambda _prof: None,
    "fork and os._exit": lambda prof: in_child(prof, lambda: os._exit(7)),
    "fork and exit": lambda prof: in_child(prof, lambda: sys.exit(7)),
    "stay": train_without_end,
}


def block():
    if ENDING == "file size limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
    with profile() as prof:
        train(prof)
        if RANK == WORLD - 1 or ENDING in TOGETHER:
            INSIDE[ENDING](prof)
        if ENDING not in ALONE:
            train(prof)


def nested():
    with profile() as prof:
        train(prof, STEPS // 2)
        with profile() as inner:
            train(inner, STEPS // 2)
        with prof.phase("after the inner one"):
            pass


def open_block(end):
    """A block that nothing leaves, in a program that ends by ``end``."""

    def run():
        prof = profile()
        prof.__enter__()
        train(prof)
        end()

    return run


def caught_exit():
    prof = profile()
    prof.__enter__()
    with contextlib.suppress(SystemExit):
        sys.exit(3)
    train(prof)


def open_at_a_caught_exit():
    prof = profile()
    prof.__enter__()
    train(prof)
    with contextlib.suppress(SystemExit):
        sys.exit(3)


KEPT = []


def generator():
    def blocks():
        with profile() as prof:
            train(prof)
            yield prof

    KEPT.append(blocks())
    next(KEPT[0])


def daemon_thread():
    done = threading.Event()

    def work():
        with profile() as prof:
            train(prof)
            done.set()
            time.sleep(600)

    threading.Thread(target=work, daemon=True).start()
    done.wait()


CELL = """
with profile() as prof:
    for number, _ in enumerate(prof.wrap(range(100))):
        time.sleep(0.01)
        if number == 99 and again:
            raise KeyboardInterrupt
"""


def notebook():
    """A cell that is interrupted and run again in the same interpreter."""
    before = sys.exit, os._exit, len(gc.callbacks)
    shell = code.InteractiveInterpreter({"profile": profile, "time": time, "again": True})
    shell.showtraceback = lambda: None
    for again in (True, False):
        shell.locals["again"] = again
        with contextlib.suppress(KeyboardInterrupt):
            shell.runcode(compile(CELL, "cell", "exec"))
        assert (sys.exit, os._exit, len(gc.callbacks)) == before


#: Runs of one rank that are no block of their own.
WHOLE = {
    "nested": nested,
    "open at the end": open_block(lambda: None),
    "open at an exit": open_block(lambda: sys.exit(3)),
    "open at an exception": open_block(raise_error),
    "open at os._exit": open_block(lambda: os._exit(5)),
    "open after a caught exit": caught_exit,
    "open at a caught exit": open_at_a_caught_exit,
    "generator": generator,
    "daemon thread": daemon_thread,
    "notebook": notebook,
}
#: All ranks end like this, and not only the last one.
TOGETHER = ("full disk", "file size limit", "exit well")
#: After these no rank trains on.
ALONE = ("finish", "full disk", "file size limit", "read-only directory", "exit well")

ENDING = sys.argv[1]
WHOLE.get(ENDING, block)()
