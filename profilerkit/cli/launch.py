"""Waits below ``profilerkit run`` for training, records it, and says at the command's end what was found."""

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any

from profilerkit.capture import handoff
from profilerkit.capture.environment import NOTEBOOK, Imports, in_kernel, note
from profilerkit.capture.guard import Guard
from profilerkit.capture.patches import Patches, uncounted
from profilerkit.capture.profiler import profile
from profilerkit.capture.settings import RunOptions, read_options
from profilerkit.capture.trial import begin as begin_trial
from profilerkit.cli.console import Console
from profilerkit.rundir.files import read_document
from profilerkit.rundir.layout import END, LAUNCH, MANIFEST, REPORT_HTML, RunManifest, rank_directory
from profilerkit.rundir.places import candidates


class Watch:
    """Patches and a hook in torch that are taken out by the first call of any.

    A launcher imports torch and never trains, so the import alone starts nothing.
    """

    def __init__(self, begin: Callable[[], object]) -> None:
        self._begin = begin
        self._is_over = False
        self._patches = Patches()

    def install(self) -> None:
        """Wait for a DataLoader to be iterated, a backward pass or an optimizer step."""
        self._patches.apply(self._hang)

    def _hang(self, patches: Patches) -> None:
        data, optim = sys.modules["torch.utils.data.dataloader"], sys.modules["torch.optim.optimizer"]
        for owner, name in (
            (data.DataLoader, "__iter__"),
            (data._BaseDataLoaderIter, "__init__"),  # a loader that makes iterators in a way of its own
            (sys.modules["torch.autograd"], "_engine_run_backward"),
        ):
            patches.patch(owner, name, partial(self._first, owner, name))
        patches.hang(optim._global_optimizer_pre_hooks, self._optimizer_steps)

    def _first(self, owner: Any, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def first(*args: Any, **kwargs: Any) -> Any:
            if not self._is_over:
                is_outermost = owner.__dict__[name] is first
                self._sign()
                if is_outermost:  # what recording put there counts this call too
                    return getattr(owner, name)(*args, **kwargs)
            return original(*args, **kwargs)

        return uncounted(first)

    def _optimizer_steps(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not self._is_over:
            self._sign()

    def _sign(self) -> None:
        self._is_over = True
        self._patches.remove()
        self._begin()


def watch(imports: Imports) -> None:
    """Wait for this process to train; called when torch has been imported, with what timed that."""
    guard = Guard("profilerkit run")
    guard.call(note, imports)
    guard.call(import_module, "profilerkit.capture.session")  # 0.2 s that would else be in the first step
    order = read_options(os.environ)
    if order is not None and order.trial is not None:
        guard.call(begin_trial, order.trial)  # first: what records lies on top of it, and counts before it is asked
    guard.call(Watch(lambda: guard.call(_record)).install)


def _record() -> None:
    """Record from here to the end of the program, unless a profile block does, or this is a worker of a DataLoader."""
    order = read_options(os.environ)
    if order is None or sys.modules["torch.utils.data"].get_worker_info() is not None:
        return
    recording = profile()
    recording.record_until_exit()
    if os.environ.get("RANK", "0") == "0" and recording.directory is not None and not in_kernel():
        name = min(str(recording.directory), os.path.relpath(recording.directory), key=len)
        Console(quiet=order.quiet).note(
            f"profilerkit: recording to {name}; for a report before it ends: profilerkit analyze {name}"
        )


#: Importing torch alone takes twice this; a command whose children used less did not train in one of them.
_CHILDREN_SECONDS = 0.5
#: The report of a small run takes 2 s of a processor. One that is not there by then is made here.
_REPORT_SECONDS = 30.0


def tell() -> None:
    """Say it at the end of the command's own process, whose order is left, unless a child may have recorded."""
    order = read_options(os.environ)
    if order is None or os.environ.get("RANK", "0") != "0":
        return
    console = Console(quiet=order.quiet)
    for run in _notebooks(order):
        _tell_of(run, console)
    times = os.times()
    if times.children_user + times.children_system > _CHILDREN_SECONDS:
        return
    seen = "torch was not imported"
    if "torch" in sys.modules:
        seen = "no DataLoader was iterated, and there was no backward pass and no optimizer step"
    console.note(f"profilerkit: nothing was recorded: {seen}")


def _notebooks(order: RunOptions) -> Iterator[Path]:
    """The runs that kernels below the command recorded, to be analysed at the kernel's end."""
    for run in takewhile(lambda path: (path / LAUNCH).exists(), candidates(order.run_directory(NOTEBOOK))):
        try:
            manifest = read_document(run / MANIFEST, RunManifest)
        except (OSError, ValueError):
            continue
        is_ours = manifest.created_unix_ns >= order.began_unix_ns and manifest.settings.get("analyze") == str(True)
        if is_ours and Path(manifest.argv[0]).stem.startswith("ipykernel"):
            yield run


def _tell_of(run: Path, console: Console) -> None:
    """Say in one line what the report says; make it where the kernel was killed before it could have it made."""
    left = (rank_directory(run, 0) / END).is_file()
    report = handoff.wait_for_report(run, _REPORT_SECONDS) if left else None
    if report is None:
        handoff.analyze(run, _REPORT_SECONDS, quiet=console.quiet)
        return
    from profilerkit.cli.analyze import brief

    console.note(f"{brief(report, ())} ({os.path.relpath(run / REPORT_HTML)})")
