"""The records and the trace of one rank to what its process did on the host besides issuing work."""

from profilerkit.analysis.host.collections import collection_facts
from profilerkit.analysis.host.compiles import compiles_of_log
from profilerkit.analysis.host.host_facts import HostFacts
from profilerkit.analysis.host.input import between_ratio
from profilerkit.analysis.steps.log import StepLog
from profilerkit.analysis.trace_facts import TraceFacts
from profilerkit.rundir.reader import RankRecord


def host_facts(record: RankRecord | None, log: StepLog | None, trace: TraceFacts | None) -> HostFacts:
    """What the recording tells; the timers, which see every step, go before the trace."""
    timed = compiles_of_log(record.events, record.names, log) if record is not None and log is not None else None
    return HostFacts(
        collections=collection_facts(record.events, log) if record is not None and log is not None else None,
        python=trace.python if trace is not None else None,
        compiles=timed or (trace.compiles if trace is not None else None),
        recording=trace.recording if trace is not None else None,
        phases=trace.phases if trace is not None else (),
        between_ratio=between_ratio(trace.partition.segments, trace.window) if trace is not None else 0.0,
        threads=record.meta.threads if record is not None and record.meta is not None else None,
        held=trace.held if trace is not None else None,
        tables=trace.tables if trace is not None else None,
        switches=record.meta.switches if record is not None and record.meta is not None else None,
    )
