"""A run directory that still grows: each look reads what is new and gives the run as it is recorded so far.

The files are those of ``reader.read_run``. Of what grows without bound only the latest records are kept, and traces are
not read: beside a job that trains, a look has to cost next to nothing.
"""

import os
from pathlib import Path
from typing import Literal

from profilerkit.model.memory import OutOfMemory
from profilerkit.rundir import layout, reader
from profilerkit.rundir.documents import DdpRecord, Flight
from profilerkit.rundir.files import GrowingLines, GrowingRecords, ReplacedDocument, sound_batches, sound_events
from profilerkit.rundir.places import modified_ns
from profilerkit.rundir.process import ClockAnchor, clock_of, still_runs
from profilerkit.rundir.sampled import Sample

MOST_EVENTS = 100_000  #: event records kept of each rank, 3.2 MB: 25,000 steps of four records each
MOST_SAMPLES = 3_600  #: samples kept of each rank: half an hour with a device and the host once a second
#: Files of a loader's workers that are read, the latest ones: without persistent workers each epoch leaves its own.
MOST_WORKERS = 64
_MOST_BATCHES = 10_000
_MOST_NAMES = 2_000
_MOST_ANCHORS = 1_000  #: anchors are a minute apart: 16 hours

#: What became of a rank: ``unknown`` is one of another host that left no word.
RankState = Literal["running", "ended", "killed", "unknown"]


def state_of(rank: reader.RankRecord) -> RankState:
    """Whether a rank still records, and how that ended."""
    if rank.end is not None:
        return "ended"
    runs = still_runs(rank.meta) if rank.meta is not None else None
    return "unknown" if runs is None else "running" if runs else "killed"


def is_reporting(run: reader.RunRecord) -> bool:
    """Whether the run's own report may still come: rank 0 has ended, its process has not, and it was to make one."""
    wanted = run.manifest is not None and run.manifest.settings.get("analyze") == str(True)
    first = next((rank for rank in run.ranks if rank.rank == 0 and rank.end is not None), None)
    return wanted and first is not None and first.meta is not None and still_runs(first.meta) is True


class FollowedRun:
    """A run directory, and how far it was read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._manifest = ReplacedDocument(path / layout.MANIFEST, layout.RunManifest)
        self._ranks: dict[int, _FollowedRank] = {}

    def look(self) -> reader.RunRecord:
        """Everything that is recorded so far. What is not there yet is not noted as damage."""
        manifest = self._manifest.look()
        world_size = manifest.world_size if manifest is not None else 0
        if manifest is None or len(self._ranks) < world_size:
            for number, place in reader.rank_directories(self._path):
                self._ranks.setdefault(number, _FollowedRank(number, place))
        ranks = tuple(self._ranks[number].look() for number in sorted(self._ranks))
        manifest, missing = reader.with_possible_world(manifest, self._ranks)
        return reader.RunRecord(path=self._path, manifest=manifest, ranks=ranks, missing_ranks=missing, notes=())


class _FollowedRank:
    def __init__(self, rank: int, path: Path) -> None:
        self._rank = rank
        self._path = path
        self._meta = ReplacedDocument(path / layout.META, layout.RankMeta)
        self._end = ReplacedDocument(path / layout.END, layout.RankEnd)
        self._oom = ReplacedDocument(path / layout.OOM, OutOfMemory)
        self._ddp = ReplacedDocument(path / layout.DDP, DdpRecord)
        self._flight = ReplacedDocument(path / layout.FLIGHT, Flight)
        self._events = GrowingRecords(path / layout.EVENTS, layout.MAGIC, layout.EVENT.size, MOST_EVENTS)
        self._names = GrowingLines(path / layout.NAMES, reader.Name, _MOST_NAMES)
        self._samples = GrowingLines(path / layout.SAMPLES, Sample, MOST_SAMPLES)
        self._clock = GrowingLines(path / layout.CLOCK, ClockAnchor, _MOST_ANCHORS)
        self._workers: dict[str, GrowingRecords] = {}
        self._worker_files: frozenset[str] = frozenset()
        self._windows: dict[str, layout.WindowStatus] = {}
        self._last_flight: tuple[str, ReplacedDocument[Flight]] | None = None

    def look(self) -> reader.RankRecord:
        # The end first: what is read after it is all there is.
        end, meta = self._end.look(), self._meta.look()
        windows = self._look_at_windows()
        flights = (self._flight_of_last_window(), self._flight.look())
        return reader.RankRecord(
            rank=self._rank,
            path=self._path,
            meta=meta,
            events=sound_events(self._events.look()),
            names={line.id: line.name for line in self._names.look()},
            samples=self._samples.look(),
            windows=tuple((status, None) for status in windows),
            end=end,
            notes=(),
            workers=tuple(self._look_at_workers()),
            oom=self._oom.look(),
            clock=clock_of(self._clock.look(), meta),
            flights=tuple(flight for flight in flights if flight is not None),
            ddp=self._ddp.look(),
        )

    def _look_at_workers(self) -> list[reader.WorkerRecord]:
        """What the latest workers wrote; the records of one that is no longer among them are dropped."""
        found = {name: pair for name in _names(self._path) if (pair := reader.worker_of(name)) is not None}
        if found.keys() != self._worker_files:
            self._worker_files = frozenset(found)
            latest = sorted(found, key=lambda name: modified_ns(self._path / name) or 0)[-MOST_WORKERS:]
            self._workers = {name: self._workers.get(name) or self._worker(name) for name in latest}
        return [
            reader.WorkerRecord(pid=found[name][0], number=found[name][1], batches=sound_batches(file.look()))
            for name, file in sorted(self._workers.items())
        ]

    def _worker(self, name: str) -> GrowingRecords:
        return GrowingRecords(self._path / name, layout.WORKER_MAGIC, layout.WORKER.size, _MOST_BATCHES)

    def _look_at_windows(self) -> list[layout.WindowStatus]:
        for name in _names(self._path / layout.WINDOWS):
            if name not in self._windows and name.isdecimal():
                status = ReplacedDocument(
                    self._path / layout.WINDOWS / name / layout.WINDOW_STATUS, layout.WindowStatus
                ).look()
                if status is not None:
                    self._windows[name] = status
        return [self._windows[name] for name in sorted(self._windows)]

    def _flight_of_last_window(self) -> Flight | None:
        if not self._windows:
            return None
        name = max(self._windows)
        if self._last_flight is None or self._last_flight[0] != name:
            place = self._path / layout.WINDOWS / name / layout.FLIGHT
            self._last_flight = (name, ReplacedDocument(place, Flight))
        return self._last_flight[1].look()


def _names(path: Path) -> list[str]:
    try:
        with os.scandir(path) as found:
            return sorted(entry.name for entry in found)
    except OSError:
        return []
