"""``profilerkit doctor``: what this machine can record, one line per check, and the fix where it cannot."""

import argparse
import json
import os
import platform
import shutil
import textwrap
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NamedTuple

from profilerkit import __version__
from profilerkit.cli.console import DONE, FAILED, Console
from profilerkit.units import format_bytes

_DEPENDENCIES = ("isal", "markupsafe", "msgspec", "numpy", "nvidia-ml-py", "plotly", "psutil", "rich")
_OLDEST_TORCH = (2, 4)
_GIB = 1 << 30


class Check(NamedTuple):
    """One line: ``warn`` means that something is left out, ``fail`` that the tool cannot be used."""

    name: str
    state: Literal["ok", "warn", "fail"]
    text: str
    fix: str = ""


def run_checks() -> list[Check]:
    """All checks, in the order they are shown; without its packages nothing else can be looked at."""
    packages = _dependencies()
    if packages.state == "fail":
        return [_python(), packages]
    return [
        _python(),
        packages,
        _plugins(),
        *_torch(),
        *_nvml(),
        _shared_memory(Path("/dev/shm")),  # noqa: S108 - looked at, not written to
        _cores(),
        _pressure(Path("/proc/pressure/cpu")),
        _disk(Path.cwd()),
    ]


def _python() -> Check:
    return Check("python", "ok", f"{platform.python_version()}, profilerkit {__version__}")


def _dependencies() -> Check:
    found, missing = [], []
    for name in _DEPENDENCIES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        return Check("packages", "fail", f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    return Check("packages", "ok", ", ".join(found))


def _plugins() -> Check:
    from profilerkit.capture.changes import CHANGE_GROUP
    from profilerkit.formats.registry import ENTRY_POINTS, installed_readers
    from profilerkit.plugins import RENDERER_GROUP, RULE_GROUP, installed_rules

    kinds = {"rule": RULE_GROUP, "reader": ENTRY_POINTS, "renderer": RENDERER_GROUP, "change": CHANGE_GROUP}
    found = [
        f"{kind} {entry.name} ({f'{entry.dist.name} {entry.dist.version}' if entry.dist else entry.value})"
        for kind, group in kinds.items()
        for entry in sorted(metadata.entry_points(group=group), key=lambda entry: entry.name)
    ]
    shown = ", ".join(found) or "no rules, readers, renderers or changes of other packages"
    if left_out := " ".join((*installed_rules()[1], *installed_readers()[1])):
        return Check("plugins", "warn", f"{shown}. {left_out}", "update these packages, or report it to their authors")
    return Check("plugins", "ok", shown)


def _torch() -> Iterator[Check]:
    try:
        import torch
    except (ImportError, OSError) as error:
        text = (
            f"cannot be imported ({error}). profile() records steps and input wait with wrap(), step() and phase(); "
            "a trace, hooks and profilerkit run need torch. Recordings can be analyzed."
        )
        yield Check("torch", "warn", text, "pip install torch")
        return
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
    build = build if torch.version.cuda or torch.version.hip else "CPU build"
    release = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if release < _OLDEST_TORCH:
        yield Check("torch", "warn", f"{torch.__version__} is older than 2.4", "pip install --upgrade torch")
    else:
        yield Check("torch", "ok", f"{torch.__version__}, {build}")
    yield _tracing(torch)


def _tracing(torch: Any) -> Check:
    if not torch.profiler.kineto_available():
        fix = "install a torch build with Kineto, such as the official wheels"
        return Check("tracing", "warn", "torch was built without Kineto: no deep tier", fix)
    if not torch.cuda.is_available():
        return Check("tracing", "ok", "Kineto, CPU only: torch sees no GPU, so the main thread is judged")
    name = torch.cuda.get_device_name()
    cuda = torch.profiler.ProfilerActivity.CUDA
    if cuda not in torch.profiler.supported_activities():
        return Check("tracing", "warn", f"{name}: this torch records no device activity", "use an official torch build")
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU, cuda]) as profiler:
            torch.ones(8, device="cuda").sum().item()
        recorded = any(event.device_type == torch.autograd.DeviceType.CUDA for event in profiler.events())
    except RuntimeError as error:
        return Check("tracing", "warn", f"{name}: a test kernel failed: {error}", "run nvidia-smi, then retry")
    if not recorded:
        fix = "close other profilers, because CUPTI serves one at a time; check that this user may use CUPTI"
        return Check("tracing", "warn", f"{name}: a test kernel ran but CUPTI recorded nothing", fix)
    return Check("tracing", "ok", f"{name}: a test kernel was recorded")


def _nvml() -> Iterator[Check]:
    fix = "install the NVIDIA driver, or start the container with --gpus all"
    try:
        import pynvml
    except ImportError:
        yield Check("nvml", "warn", "nvidia-ml-py is not installed: no device samples", "pip install nvidia-ml-py")
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        yield Check("nvml", "warn", f"{error}: no device samples", fix)
        return
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
        count = pynvml.nvmlDeviceGetCount()
        yield Check("nvml", "ok", f"driver {driver}, {count} device{'s' if count != 1 else ''}")
        for index in range(count):
            yield _device(pynvml, index)
    except pynvml.NVMLError as error:
        yield Check("nvml", "warn", f"{error} after a successful start: device samples may be incomplete", fix)
    finally:
        pynvml.nvmlShutdown()


def _device(pynvml: Any, index: int) -> Check:
    from profilerkit.hardware import lookup

    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    name = pynvml.nvmlDeviceGetName(handle)
    total_bytes = pynvml.nvmlDeviceGetMemoryInfo(handle).total
    spec = lookup(name, total_bytes)
    shown = f"{name}, {format_bytes(total_bytes)}"
    if spec is None:
        text = f"{shown}: not in the hardware table, so nothing is compared with its peaks"
        return Check(f"device {index}", "warn", text, "add a row to hardware/specs.toml, with its source")
    return Check(f"device {index}", "ok", f"{shown}: {spec.name} in the hardware table")


def _shared_memory(path: Path) -> Check:
    try:
        stat = os.statvfs(path)
    except OSError as error:
        fix = "mount it: DataLoader workers pass batches through it"
        return Check("shared memory", "warn", f"{path}: {error.strerror}", fix)
    size_bytes, free_bytes = stat.f_frsize * stat.f_blocks, stat.f_frsize * stat.f_bavail
    shown = f"{path}: {format_bytes(free_bytes)} free of {format_bytes(size_bytes)}"
    if free_bytes < _GIB:
        fix = "start the container with --shm-size=8g or --ipc=host"
        return Check("shared memory", "warn", f"{shown}: DataLoader workers can run out", fix)
    return Check("shared memory", "ok", shown)


def _cores() -> Check:
    from profilerkit.capture.environment import usable_cores

    usable = usable_cores()
    shown = f"{usable:g} of {os.cpu_count()} usable, by affinity and control group"
    if usable < 2:
        return Check("cores", "warn", f"{shown}: DataLoader workers share one core", "give the job at least 2 cores")
    return Check("cores", "ok", shown)


def _pressure(path: Path) -> Check:
    try:
        path.read_text("utf-8")
    except OSError as error:
        text = f"{path}: {error.strerror}: contention on this host is not measured"
        return Check("pressure", "warn", text, "boot with psi=1, or expose /proc/pressure to the container")
    return Check("pressure", "ok", f"{path.parent} can be read")


def _disk(path: Path) -> Check:
    free_bytes = shutil.disk_usage(path).free
    if free_bytes < 2 * _GIB:
        fix = "free some, or record elsewhere: profile('/path/with/space')"
        return Check("disk", "warn", f"{format_bytes(free_bytes)} free here: a trace can need more", fix)
    return Check("disk", "ok", f"{format_bytes(free_bytes)} free here")


_PAINT = {"ok": "\x1b[32m", "warn": "\x1b[33m", "fail": "\x1b[31m"}
_PLAIN = "\x1b[0m"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``doctor``."""
    parser.epilog = (
        "ok: works. warn: works without what the line names. fail: profilerkit cannot be\n"
        "used (exit code 2). doctor is read-only; on a GPU it runs one tiny kernel."
    )
    parser.add_argument("--json", action="store_true", help="print the checks as JSON")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Print every check; fail only when the tool is unusable."""
    checks = run_checks()
    usable = all(check.state != "fail" for check in checks)
    if arguments.json:
        document = {"usable": usable, "checks": [check._asdict() for check in checks]}
        console.raw(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        console.out("\n".join(_lines(check, console) for check in checks))
    return DONE if usable else FAILED


def _lines(check: Check, console: Console) -> str:
    lead = f"{check.state:<5} {check.name:<13} "
    lines = textwrap.wrap(
        check.text, console.width, initial_indent=lead, subsequent_indent=" " * len(lead), break_on_hyphens=False
    )
    if check.fix:
        indent = " " * len(lead)
        lines += textwrap.wrap(
            f"fix: {check.fix}",
            console.width,
            initial_indent=indent,
            subsequent_indent=f"{indent}     ",
            break_on_hyphens=False,
        )
    text = "\n".join(lines)
    if console.colour:
        text = text.replace(check.state, f"{_PAINT[check.state]}{check.state}{_PLAIN}", 1)
    return text
