"""The list of what is watched beside the steps."""

from profilerkit.capture.allocator import AllocatorWatch
from profilerkit.capture.clock_anchors import ClockWatch
from profilerkit.capture.collectives import CollectiveWatch
from profilerkit.capture.collector import CollectionWatch
from profilerkit.capture.compiles import CompileWatch
from profilerkit.capture.ddp import DdpWatch
from profilerkit.capture.evaluations import EvaluationWatch
from profilerkit.capture.recorder import Recorder
from profilerkit.capture.saves import SaveWatch
from profilerkit.capture.steps import StepTracker
from profilerkit.capture.syncs import CopyWatch, SyncWatch
from profilerkit.capture.watches import Watch
from profilerkit.rundir.layout import DDP
from profilerkit.rundir.writer import RankWriter


def watched(recorder: Recorder, tracker: StepTracker, writer: RankWriter) -> tuple[Watch, ...]:
    """Make one watch of each kind that is known by its records alone."""
    record, name_id = recorder.record, recorder.name_id
    return (
        ClockWatch(writer.append_anchor),
        CollectionWatch(record, tracker),
        SaveWatch(record, tracker, name_id),
        CompileWatch(record, name_id),
        EvaluationWatch(record, tracker),
        CollectiveWatch(record, tracker, name_id),
        SyncWatch(record, tracker, name_id),
        CopyWatch(),
        AllocatorWatch(writer.append_sample),
        DdpWatch(writer.path / DDP),
    )
