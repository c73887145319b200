"""The tools, each switched on around a block of steps of one process."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from overhead_benchmark.cases import (
    ACTIVE,
    ADVANCED,
    CLOCKED,
    LIGHT,
    OFF,
    OURS,
    SAMPLERS,
    SIMPLE,
    TRACEML,
    UNEDITED,
    WAITING,
)  # fmt: skip
from overhead_benchmark.workload import Workload

Step = Callable[[], None]
Variant = Callable[[], AbstractContextManager[Step]]


class _FreeEvent:
    """A mark that the device reaches at once."""

    def record(self, _stream: Any) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, _end: Any) -> float:
        return 1.0


class _FreeDevice:
    """A device whose calls cost what a call of Python's does."""

    device_index = 0

    def in_use(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def stream(self, _device: object) -> "_FreeDevice":
        return self

    def event(self) -> _FreeEvent:
        return _FreeEvent()


class Variants:
    """What can be switched on around the steps of one workload."""

    def __init__(self, work: Workload, place: Path) -> None:
        """``place`` takes the run directories; the same on all ranks."""
        self._work = work
        self._place = place
        self._runs = 0
        self._watched: Iterator[Any] | None = None

    def make(self, name: str) -> Variant:
        """The variant of this name. Raises ImportError when the tool is not installed."""
        if name in OURS:
            chosen = {
                OFF: self.off,
                LIGHT: self.light,
                UNEDITED: lambda: self.light(wrap=False),
                SAMPLERS: lambda: self.light(samplers=True),
                CLOCKED: self.clocked,
            }
            return chosen[name]
        if name in (SIMPLE, ADVANCED):
            from lightning.pytorch import profilers  # noqa: PLC0415 - a peer that may be missing

            made = profilers.SimpleProfiler() if name == SIMPLE else profilers.AdvancedProfiler()
            return lambda: self.lightning(made)
        if name == TRACEML:
            import traceml_ai  # noqa: PLC0415 - a peer that may be missing

            return lambda: self.traceml(traceml_ai)
        return {WAITING: lambda: self.torch_profiler(recording=False), ACTIVE: self.torch_profiler}[name]

    @contextmanager
    def off(self) -> Iterator[Step]:
        """Nothing."""
        work = self._work
        yield lambda: work.step(work.batches)

    @contextmanager
    def light(self, *, samplers: bool = False, wrap: bool = True, **settings: Any) -> Iterator[Step]:
        """Ours, without the trace window unless ``settings`` say so."""
        import profilerkit  # noqa: PLC0415 - the peers' environments do not have it

        self._runs += 1
        self.directory = self._place / f"{self._runs:06d}"
        settings = {"deep": False, "analyze": False, "overhead_budget": 1.0, **settings}
        with profilerkit.profile(self.directory, nvml=samplers, host=samplers, **settings) as prof:
            if self._work.workers and self._watched is None:
                self._watched = self._work.loader()  # started inside a recording, so its workers are watched
                next(self._watched)
            source = self._watched or self._work.batches
            batches = prof.wrap(source) if wrap else source
            yield lambda: self._work.step(batches)

    @contextmanager
    def clocked(self) -> Iterator[Step]:
        """Ours on a device that does nothing, and at once."""
        with patch("profilerkit.capture.session.CudaDevice", _FreeDevice), self.light() as step:
            yield step

    @contextmanager
    def lightning(self, profiler: Any) -> Iterator[Step]:
        """One of Lightning's, around the four actions of a step that its trainer always profiles."""
        work, profile = self._work, profiler.profile

        def step() -> None:
            with profile("[_TrainingEpochLoop].train_dataloader_next"):
                batch = next(work.batches)
            with profile("[Strategy]SingleDeviceStrategy.training_step"):
                loss = work.forward(batch)
            with profile("[Strategy]SingleDeviceStrategy.backward"):
                loss.backward()
            with profile("[LightningModule]Model.optimizer_step"):
                work.update()

        yield step

    @contextmanager
    def torch_profiler(self, *, recording: bool = True) -> Iterator[Step]:
        """Torch's own with a schedule, either waiting for its window or inside it."""
        import torch.profiler as tp  # noqa: PLC0415

        plan = tp.schedule(wait=0 if recording else 1 << 30, warmup=1, active=1 << 30)
        with tp.profile(activities=[tp.ProfilerActivity.CPU], schedule=plan) as profiler:

            def step() -> None:
                self._work.step(self._work.batches)
                profiler.step()

            yield step

    @contextmanager
    def traceml(self, traceml: Any) -> Iterator[Step]:
        """TraceML as its documentation says; between its blocks its patches stay in place."""
        work = self._work

        def step() -> None:
            with traceml.trace_step(work.model):
                work.step(work.batches)

        yield step
