"""Looks some seven times per second at what a thread runs, and keeps the user's lines that it finds on its stack."""

import ctypes
import gc
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType

from profilerkit.capture.background import Sampler
from profilerkit.capture.clocks import Meter, Moment
from profilerkit.capture.patches import UNCOUNTED
from profilerkit.capture.proc_files import ProcFile
from profilerkit.model import revise
from profilerkit.rundir.files import AppendFile, Descriptor
from profilerkit.rundir.sampled import StackPlace, StackSample
from profilerkit.rundir.writer import lines_of

#: Time between two looks, s (a choice): 10 s of a steady loop tell a share of one third to within 11 % of the time.
PERIOD_SECONDS = 0.15
#: The same in a worker (a choice): all workers do alike, and what each writes counts against the run
WORKER_PERIOD_SECONDS = 0.2
#: After so many looks the pauses are twice as long, and so on: a share is known to 2 % by then (a choice).
_ENOUGH = 2_000
#: CPU time of the looking thread that is allowed, of the wall's time: with the 5 ms that first looks at much code take
#: (measured), below 0.3 % after 10 s. One look takes 60 to 400 µs: some 10 per second are left on a busy host.
_MOST_COST, _FIRST_NS = 0.0025, 5_000_000
_GOLDEN = 0.618033988749895  #: looks are spread by the golden ratio, so that they meet no loop in step
#: A look asks for the interpreter after this time instead of CPython's 5 ms (``sys.setswitchinterval``), which shorter
#: Python never reaches: all of 140 looks at steps with 3.8 ms of it found torch. It does so for the last moments of its
#: pause, up to 10 ms, so that where the thread gave the interpreter up before does not matter (choices).
_SWITCH_SECONDS, _SHARP_SECONDS = 0.0005, 0.01
#: States of a thread that sleeps, of the kernel's (proc(5)).
_ASLEEP = ("S", "D")
_WRITE_NS = 1_000_000_000
_READ_BYTES = 256
_MOST_LINES = 4
_MOST_DEPTH = 300
_MOST_CODES = 4_096
#: What runs inside these is a step's own work, told under the function around it.
_COMPREHENSIONS = frozenset(("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"))
_OURS = str(Path(__file__).parents[1]) + os.sep
_STDLIB = str(Path(os.__file__).parent) + os.sep
_INSTALLED = ("site-packages" + os.sep, "dist-packages" + os.sep)
#: Where torch calls the user's code, by file: up to there a stack is the user's, from there on outwards torch's.
_LOADER = ("utils/data/dataloader.py", "utils/data/_utils/fetch.py", "utils/data/_utils/worker.py")
_BACKWARD = frozenset(("backward", "grad", "_engine_run_backward"))

#: What a frame is: the user's, a library's, passed over, torch's, capture's own work or its calls of somebody else's, …
_USER, _LIBRARY, _SKIPPED, _TORCH, _OWN, _CALLS, _FETCHES = "user", "library", "", "torch", "own", "calls", "fetches"
#: … torch's call of a module that has hooks (``inner``, torch 2.13): in those nothing is named for the forward pass, …
_MODULE, _FORWARD = "module", "forward"
#: … or the edge of a place: outwards of it the stack tells nothing of it, or only who called it.
_EDGES: dict[str, StackPlace] = {_FETCHES: "input", "input": "input", "collate": "collate"}
_CALLED: dict[str, StackPlace] = {"backward": "backward", "optimizer": "optimizer", "save": "save"}
#: Capture's own work in which others are called.
_OWN_FILES = ("capture/deep.py", "capture/windows.py")
_FETCH_FILES = ("capture/loader.py", "capture/loader_patches.py")

#: ``os.pread`` lets go of the interpreter, and getting it back from a thread that computes costs a look 0.1 ms.
_read = ctypes.PyDLL(None).pread
_read.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long)
_read.restype = ctypes.c_ssize_t


def _found(place: StackPlace, lines: tuple[str, ...], in_torch: bool) -> StackSample:
    return StackSample(t_ns=0, place=place, lines=lines, in_torch=in_torch)


class StackSource:
    """Reads the stack of one thread, for a ``Sampler``."""

    def __init__(self, path: Path, thread: Callable[[], int]) -> None:
        """``path`` takes the samples; ``thread`` says whose stack is read, 0 for none."""
        self._thread = thread
        self._path = path
        self._file: AppendFile | None = None  # made with the first sample: a worker that makes nothing leaves none
        self._samples: list[StackSample] = []
        # By ``id``, with the code that has it: what dynamo makes has constants that cannot be hashed.
        self._kinds: dict[int, tuple[str, str, CodeType]] = {}
        self.meter = Meter()  #: how long one look holds the interpreter, which the training may want
        self.taken = self._looks = 0
        self._written_ns = 0
        self._state = 0, ProcFile(Path(os.devnull))  # of a thread, by its number
        self._queue: Descriptor | None = None
        self._buffer = ctypes.create_string_buffer(_READ_BYTES)

    def open(self) -> str:
        """Start the clocks."""
        with suppress(OSError):
            self._queue = Descriptor("/proc/thread-self/schedstat", os.O_RDONLY)
        self._last = self._began = self._now()
        self._written_ns = self._last[0]
        return ""

    def pause(self, at_least: float) -> float:
        """Return the seconds until the next look: longer where looks are many, or have cost too much so far."""
        wall_ns, cpu_ns = (now - began for now, began in zip(self._last[:2], self._began[:2], strict=True))
        pause = at_least * (1 + self._looks / _ENOUGH) * (0.5 + self._looks * _GOLDEN % 1)
        return max(pause, (cpu_ns - _FIRST_NS - _MOST_COST * wall_ns) / _MOST_COST / 1e9)

    def read(self) -> None:
        """Look once.

        The look waits for the interpreter: how long it did, its own waiting for a processor left out, is how long the
        thread had kept it.
        """
        thread, before = self._thread(), self._now()
        due_ns = before[0] + _pause_sharply(_SHARP_SECONDS * (self._looks * _GOLDEN % 1))
        woken_ns, _, queued_ns = self._now()
        found = self._look(thread) if thread else None  # before any call that would let the thread go on
        queued = max(queued_ns - before[2], 0)
        held = max(woken_ns - due_ns - queued, 0)
        waits = found is not None and held < _SWITCH_SECONDS * 1e9 and self._waits(thread)
        now = self._now()
        if thread and self.meter.is_open:
            self.meter.add(now[0] - woken_ns)
        if found is not None:
            self.taken += 1
            self._samples.append(revise(found, t_ns=woken_ns, held_ns=held, queued_ns=queued, waits=waits))
        self._last = now
        self._looks += 1
        if now[0] - self._written_ns > _WRITE_NS:
            self._write()

    def missing(self) -> str:
        """Why there are no samples."""
        stopped = self._file.stopped if self._file is not None else None
        return stopped or ("" if self.taken else "the training thread ran no line that is known")

    def close(self) -> None:
        """Write what is left."""
        self._write()
        if self._file is not None:
            self._file.close()
        self._state[1].close()
        if self._queue is not None:
            self._queue.close()

    def _now(self) -> Moment:
        """The clocks of the looking thread, ns, read without letting go of the interpreter, as ``os.pread`` would."""
        size = _read(self._queue.number, self._buffer, len(self._buffer), 0) if self._queue is not None else 0
        words = self._buffer.raw[: max(size, 0)].split()
        return time.perf_counter_ns(), time.thread_time_ns(), int(words[1]) if len(words) > 1 else -1

    def _waits(self, thread: int) -> bool:
        """Whether a thread that was just looked at sleeps; reading that lets go of the interpreter, and wakes it.

        So a thread that wanted no more than the interpreter is no longer asleep.
        """
        if self._state[0] != thread:
            number = next((one.native_id for one in threading.enumerate() if one.ident == thread), None)
            self._state[1].close()
            self._state = thread, ProcFile(Path(f"/proc/self/task/{number}/stat"))
        return self._state[1].text().rpartition(") ")[2][:1] in _ASLEEP

    def _write(self) -> None:
        self._written_ns = time.perf_counter_ns()
        samples, self._samples = self._samples, []
        if samples:
            self._file = self._file or AppendFile(self._path)
            self._file.append(lines_of(samples))

    def _look(self, thread: int) -> StackSample | None:
        frames = _current_frames()
        frame = frames.pop(thread, None)
        found = self._walk(frame) if frame is not None else None
        if found is not None and found.place == "backward":
            found = next(filter(None, map(self._hook, frames.values())), found)
        frames.clear()
        return found

    def _hook(self, frame: FrameType) -> StackSample | None:
        """What a thread of autograd's runs: none of Python's, its stack begins in no module of threads."""
        root = frame
        while root.f_back is not None:
            root = root.f_back
        found = self._walk(frame) if root.f_code.co_filename != threading.__file__ else None
        return _found("hook", found.lines, found.in_torch) if found is not None and found.lines else None

    def _walk(self, frame: FrameType | None) -> StackSample | None:
        """Where a stack stands, and the user's lines in there, outer first; ``None`` for capture's own work."""
        user: list[str] = []
        library: deque[str] = deque(maxlen=_MOST_LINES)  # its outermost, by which the user's code got there
        torch: FrameType | None = None  # its outermost
        place, depth, kinds, in_torch, forward = "", 0, self._kinds, False, False
        while frame is not None and depth < _MOST_DEPTH:
            kind, *_ = kinds.get(id(frame.f_code)) or self._kind(frame.f_code)
            forward = forward or _FORWARD in frame.f_code.co_name
            if kind == _MODULE and not forward and (user or library):
                return _found("forward_hook", tuple(reversed(user or library)), in_torch)
            if kind == _USER:
                if not user:
                    in_torch = torch is not None or place != ""
                if len(user) < _MOST_LINES:
                    user.append(self._text(frame))
            elif kind == _LIBRARY:
                library.append(self._text(frame))
            elif kind in (_TORCH, _MODULE):
                torch = frame
            elif kind == _OWN or (kind in (_CALLS, _FETCHES) and not (user or library or torch or place)):
                return None
            elif kind in _EDGES:
                found = tuple(reversed(user or library)) or (self._text(torch or frame),)
                return _found(_EDGES[kind], found, not (user or library))
            elif kind == "backward" and (user or library):
                return _found("hook", tuple(reversed(user or library)), in_torch)
            elif kind in _CALLED and not (user or library):
                place = place or kind
            frame, depth = frame.f_back, depth + 1
        return _found(_CALLED.get(place, "step"), tuple(reversed(user or library)), in_torch)

    def _text(self, frame: FrameType) -> str:
        file, _, function = (self._kinds.get(id(frame.f_code)) or self._kind(frame.f_code))[1].partition("\n")
        line, code = frame.f_lineno, frame.f_code
        if not line:  # the last before a jump that is in none, as CPython 3.11 makes them at the end of loops
            known = [at for start, _, at in code.co_lines() if at is not None and start <= frame.f_lasti]
            line = known[-1] if known else code.co_firstlineno
        return f"{file}({line}): {function}"

    def _kind(self, code: CodeType) -> tuple[str, str, CodeType]:
        if len(self._kinds) >= _MOST_CODES:
            self._kinds.clear()
        kind = _SKIPPED if code.co_name in _COMPREHENSIONS else _kind_of(code.co_filename, code.co_name)
        self._kinds[id(code)] = found = kind, f"{_short(code)}\n{code.co_name}" if kind else "", code
        return found


_usual: list[float] = []  #: CPython's interval while looks ask sooner


def _pause_sharply(seconds: float) -> int:
    """Wait, and have the interpreter be asked for sooner at the end of it; return how long it was to take, ns."""
    usual = sys.getswitchinterval()
    if usual > _SWITCH_SECONDS:
        _usual.append(usual)
        sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        time.sleep(seconds)
    finally:
        _end_sharply()
    return int(seconds * 1e9)


def _end_sharply() -> None:
    """Put the usual interval back, unless somebody else has set it meanwhile; a forked child takes it along."""
    usual = _usual.pop() if _usual else 0.0
    if usual and sys.getswitchinterval() < 2 * _SWITCH_SECONDS:
        sys.setswitchinterval(usual)


os.register_at_fork(after_in_child=_end_sharply)


def _current_frames() -> dict[int, FrameType]:
    """The frames of all threads.

    Before CPython 3.12 a collection within this call may let another thread go on, which then waits for ever for the
    lock that this call holds (gh-106883): none begins meanwhile. Nothing else runs until it may again.
    """
    collects = sys.version_info < (3, 12) and gc.isenabled()
    if collects:
        gc.disable()
    try:
        return sys._current_frames()
    finally:
        if collects:
            gc.enable()


def _short(code: CodeType) -> str:
    """The file of ``code`` for a reader: its name, with its folder where that is not the program's own."""
    file, main = Path(code.co_filename), getattr(sys.modules.get("__main__"), "__file__", None)
    is_beside = len(file.parts) == 1 or (main and file.parent in (Path(main).parent, Path(sys.path[0] or ".")))
    found = file.name if is_beside else f"{file.parent.name}/{file.name}"
    return found.encode(errors="replace").decode()  # a name in no encoding cannot be written


def _kind_of(file: str, function: str) -> str:
    file = file.removeprefix(UNCOUNTED)
    if file.startswith(_OURS):
        return _kind_of_ours(file[len(_OURS) :].replace(os.sep, "/"), function)
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    folder = str(Path(torch).parent) + os.sep if torch else ""
    if folder and file.startswith(folder):
        return _kind_of_torch(file[len(folder) :].replace(os.sep, "/"), function)
    if "torchinductor" in file or (file.startswith("<") and not file.startswith(("<stdin>", "<ipython"))):
        return _SKIPPED
    if any(installed in file for installed in _INSTALLED):
        return _LIBRARY
    return _SKIPPED if file.startswith(_STDLIB) else _USER


def _kind_of_ours(file: str, function: str) -> str:
    if file == "capture/workers.py" and function == "collate":
        return "collate"
    if file in _FETCH_FILES:
        return _FETCHES
    return _OWN if file in _OWN_FILES else _CALLS if file.startswith(("capture/", "rundir/")) else _SKIPPED


def _kind_of_torch(file: str, function: str) -> str:
    if file in _LOADER:
        return "input"
    if file in ("autograd/__init__.py", "autograd/graph.py") and function in _BACKWARD:
        return "backward"
    if file.startswith("utils/tensorboard/"):
        return _LIBRARY
    if file.startswith("optim/"):
        return "optimizer"
    if file == "serialization.py" or file.startswith("distributed/checkpoint/"):
        return "save"
    return _MODULE if file == "nn/modules/module.py" and function == "inner" else _TORCH


def stack_sampler(
    path: Path, thread: Callable[[], int], period_seconds: float = PERIOD_SECONDS
) -> tuple[Sampler, StackSource]:
    """Make what looks at ``thread`` once it is started."""
    source = StackSource(path, thread)
    sampler = Sampler("stacks", source, lambda _sample: None, source.pause)
    sampler.period_seconds = period_seconds
    return sampler, source
