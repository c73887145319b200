"""Run Python programs in forks of a process that has imported torch: the import takes 3 s of CPU, a fork 0.02 s.

A program has a ``__main__``, arguments, a directory, an environment and a session of its own, and ends as any Python
ends. Below ``profilerkit run`` its ``import torch`` is seen as the first one. It does not see how an interpreter starts
and imports: what is about that starts a Python of its own. All workers of a run of tests share one such process.
"""

import atexit
import contextlib
import functools
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace

HOME = Path(__file__).parents[1]
_SIZE = 1 << 18
#: Is set below ``profilerkit run``.
_ORDER = "PROFILERKIT_RUN"
_TEMPLATE = "import sys; from tests.programs import serve, main; main = main(*serve(int(sys.argv[1]))); exec(*main)"
_IMPORTS = (
    "numpy",
    "msgspec",
    "psutil",
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.profiler",
    "profilerkit.capture.session",
)


class Program:
    """A program that runs or has ended; its methods are those of ``subprocess.Popen``."""

    def __init__(self, control, out, err):
        self._control, self._files, self._said = os.fdopen(control), (out, err), None
        self.pid = int(self._control.readline())
        self.returncode = None

    def poll(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout=None):
        if self.returncode is None:
            if not select.select([self._control], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            self.returncode = int(self._control.readline())
            self._control.close()
        return self.returncode

    def communicate(self, given=None, timeout=None):
        """Wait; return what it wrote to standard output and standard error, as text. It has no standard input."""
        assert given is None
        self.wait(timeout)
        if self._said is None:
            self._said = tuple(Path(f"/proc/self/fd/{file.fileno()}").read_text("utf-8") for file in self._files)
            for file in self._files:
                file.close()
        return self._said

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.wait()

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)


#: Where the template listens: no file, and one for all workers of a run.
_name = f"\0profilerkit.{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}"


@functools.cache
def _door():
    """A connection to the template, which ends with the last one; the first to come starts it."""
    template = None
    while template is None or template.poll() is None:
        ours = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.suppress(ConnectionError):
            ours.connect(_name)
            if ours.recv(1):
                atexit.register(ours.close)
                return ours
        ours.close()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as its, contextlib.suppress(OSError):
            its.bind(_name)  # fails where another one is first
            its.listen()
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HOME)}
            command, fd = [sys.executable, "-c", _TEMPLATE], its.fileno()
            template = subprocess.Popen(
                [*command, str(fd)], env=environment, cwd=HOME, pass_fds=[fd], stdin=subprocess.DEVNULL
            )
            atexit.register(_ended, template)
    raise RuntimeError("the template of all programs does not start")


def _ended(template):
    """Let the template end by itself; an orphan that a test left must not keep the run from ending."""
    try:
        template.wait(5)
    except subprocess.TimeoutExpired:
        template.kill()


def start(*words, cwd=None, env=None, warm=False):
    """Start what ``python WORDS`` starts: a script, ``-c code`` or ``-m module``, and arguments.

    What a ``warm`` one starts of this Python is such a program too.
    """
    out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - closed once they were read
    return _start(words, cwd, env, out, err, warm=warm)


class WarmPopen(subprocess.Popen):
    """Starts programs for commands of this Python."""

    def __new__(cls, args, *, cwd=None, env=None, stdout=None, stderr=None, **_others):
        if isinstance(args, str) or str(args[0]) != sys.executable or args[1] == "-P":
            return super().__new__(cls)
        out = _sink(stdout, 1)
        err = out if stderr == subprocess.STDOUT else _sink(stderr, 2)
        words = args[2:] if args[1] == "-u" else args[1:]  # launchers start their workers so
        program = _start(words, cwd, env, out, err, warm=True)
        program.args = args
        return program


def _sink(given, inherited):
    if given is None:
        return os.fdopen(os.dup(inherited))
    return given if hasattr(given, "fileno") else tempfile.TemporaryFile()


def warm(monkeypatch, module):
    """Have a module's ``subprocess.Popen`` start such programs."""
    names = {name: getattr(subprocess, name) for name in ("DEVNULL", "STDOUT", "TimeoutExpired")}
    monkeypatch.setattr(module, "subprocess", SimpleNamespace(Popen=WarmPopen, **names))


def _start(words, cwd, env, out, err, *, warm):
    place = {"cwd": str(cwd or Path.cwd()), "env": dict(os.environ if env is None else env)}
    control, its_end = os.pipe()
    message = {"words": [*map(str, words)], **place, "door": _name if warm else ""}
    socket.send_fds(_door(), [json.dumps(message).encode()], [out.fileno(), err.fileno(), its_end])
    os.close(its_end)
    return Program(control, out, err)


def run(*words, cwd=None, env=None, timeout=120, check=False, warm=False):
    """The finished program, as ``subprocess.run(..., capture_output=True, text=True)`` returns it."""
    return _finished(words, [start(*words, cwd=cwd, env=env, warm=warm)], timeout, check)[0]


def _finished(words, started, timeout, check):
    try:
        said = [program.communicate(timeout=timeout) for program in started]
    finally:
        for program in started:
            program.kill()
    codes = [program.returncode for program in started]
    assert not check or not any(codes), "\n".join(err for _, err in said)
    return [subprocess.CompletedProcess(words, code, *texts) for code, texts in zip(codes, said, strict=True)]


def ranks(*words, cwd=None, env=None, timeout=120, check=False):
    """The two finished ranks of one job, with the variables of ``torchrun`` on one host."""
    job = {**(os.environ if env is None else env), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    job |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    started = [start(*words, cwd=cwd, env={**job, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in (0, 1)]
    return _finished(words, started, timeout, check)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def serve(listens):
    """Fork for each message, and send back the child's id and exit code. Return in the child alone."""
    for name in _IMPORTS:
        with contextlib.suppress(ImportError):
            __import__(name)
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a process with threads cannot be forked safely"
    listener, doors = socket.socket(fileno=listens), []
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    gc.freeze()
    running = {}
    while True:
        ready, _, _ = select.select([listener, woken, *doors], [], [])
        if woken in ready:
            os.read(woken, 512)
            for pid in [pid for pid in running if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)]:
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with contextlib.suppress(BrokenPipeError), os.fdopen(running.pop(pid), "w") as control:
                    control.write(f"{code}\n")
        if listener in ready:
            doors.append(listener.accept()[0])
            doors[-1].send(b"!")
        for door in [door for door in doors if door in ready]:
            message, descriptors, _, _ = socket.recv_fds(door, _SIZE, 3)
            if not message:
                doors.remove(door)
                door.close()
                if not doors:
                    os._exit(0)
                continue
            child = os.fork()
            if child == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.dup2(descriptors[0], 1)
                os.dup2(descriptors[1], 2)
                for other in (listener, *doors):
                    other.detach()
                os.closerange(3, os.sysconf("SC_OPEN_MAX"))
                return json.loads(message).values()
            os.write(descriptors[2], b"%d\n" % child)
            running[child] = descriptors[2]
            os.close(descriptors[0])
            os.close(descriptors[1])


def main(words, cwd, env, door):
    """Make this process one that has just been started so; return the code to execute and its globals."""
    global _name
    if door:
        _name, subprocess.Popen = door, WarmPopen
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.orig_argv = [sys.executable, *words]
    if words[:3] == ["-m", "profilerkit", "run"]:
        words, env = _becomes(words[2:])
        os.environ.clear()
        os.environ.update(env)
    tempfile.tempdir = None  # asked again where TMPDIR differs
    own = {"__name__": "__main__", "__builtins__": __builtins__, "__spec__": None, "__loader__": None}
    if words[0] == "-m":
        words = ["-c", f"import runpy; runpy.run_module({words[1]!r}, run_name='__main__', alter_sys=True)", *words[2:]]
    if words[0] == "-c":
        source, name, first = words[1], "<string>", ""
        sys.argv = ["-c", *words[2:]]
    else:
        name = str(Path(words[0]).absolute())
        source, first = Path(name).read_text("utf-8"), str(Path(name).resolve().parent)
        sys.argv = list(words)
        own["__file__"] = name
    paths = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:1] = [first, *paths]
    if _ORDER in env:
        _start_anew()
    namespace = vars(sys.modules["__main__"])
    namespace.clear()
    namespace.update(own)
    return compile(source, name, "exec"), namespace


def _becomes(words):
    """The words and the environment of the Python that ``profilerkit run`` becomes; another program it does become."""
    from profilerkit.cli import main

    found, become = [], os.execvpe

    def noted(program, command, variables):
        if program != sys.executable:
            become(program, command, variables)
        found.extend((command[1:], variables))
        sys.exit()

    os.execvpe = noted
    code = main(words)
    os.execvpe = become
    if not found:
        sys.exit(code)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)  # as Python starts
    for name in [name for name in sys.modules if name.partition(".")[0] == "profilerkit"]:
        del sys.modules[name]
    return found


class _Again:
    """Finds torch, which is there, for a program that imports it for the first time."""

    def __init__(self):
        self._torch = sys.modules.pop("torch")
        self._spec = self._torch.__spec__

    def find_spec(self, name, _path=None, _target=None):
        return ModuleSpec(name, self) if name == "torch" else None

    def create_module(self, _spec):
        return self._torch

    def exec_module(self, module):
        module.__spec__ = self._spec


def _start_anew():
    """Import what stands first in ``PYTHONPATH`` below ``profilerkit run``, as Python does at its start."""
    if "torch" in sys.modules:
        sys.meta_path.insert(0, _Again())
    sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ImportError):
        __import__("sitecustomize")
