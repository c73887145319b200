"""The invariants of §4.5 on real traces, where they lie beside the repository."""

import functools
import gzip
import json
from pathlib import Path

import pytest

from profilerkit.model.finding import in_order
from tests.analysis import changes
from tests.analysis.changes import analyzed, told

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
MANIFEST = TRACES / "MANIFEST.json"
#: Larger sets would only take longer: what they have beyond these is length.
MOST_BYTES = 620_000

pytestmark = [
    pytest.mark.shared_traces,
    pytest.mark.skipif(not MANIFEST.exists(), reason=f"no shared traces beside the repository, at {TRACES}"),
]


def small_sets():
    sets = json.loads(MANIFEST.read_text("utf-8"))["sets"] if MANIFEST.exists() else {}
    for name, entry in sets.items():
        files = [TRACES / file["file"] for file in entry["files"] if file["format"] == "kineto"]
        if len(files) == len(entry["files"]) and sum(file.stat().st_size for file in files) <= MOST_BYTES:
            yield name, tuple(files)


SETS = dict(small_sets())


@pytest.fixture(scope="module", params=SETS)
def name(request):
    """A set: all tests of it follow each other, so that it is parsed and analysed once."""
    return request.param


@functools.lru_cache(maxsize=2)
def documents_of(name):
    return [json.loads(gzip.decompress(file.read_bytes())) for file in SETS[name]]


@functools.cache
def report_of(name):
    return analyzed(documents_of(name))


def loaded(name):
    """Documents and report of a set."""
    return documents_of(name), report_of(name)


def test_there_are_sets_of_many_kinds():
    assert len(SETS) >= 12


def test_parts_sum_to_the_step_and_savings_to_no_more(name):
    report = loaded(name)[1]
    for rank in report.ranks:
        assert all(part.share >= 0 for part in rank.breakdown)
        assert sum(part.share for part in rank.breakdown) == pytest.approx(1.0, abs=1e-6)
    for row in report.steps.rows:
        assert sum(row.parts.values()) == row.time_ns
    for _, finding in in_order(report.outcomes):
        if finding.saving is not None:
            saving = finding.saving
            assert 0.0 <= saving.low <= saving.expected <= saving.high <= 1.0


def test_order_copies_numbers_and_when_it_was_mean_nothing(name):
    documents, report = loaded(name)
    moved = (changes.shifted(document, 5_000_000) for document in documents)
    changed = [changes.renumbered(changes.shuffled(changes.doubled(document))) for document in moved]
    assert told(analyzed(changed), moments=False) == told(report, moments=False)


def test_events_outside_of_the_steps_do_not_count(name):
    documents, report = loaded(name)
    marks = [mark for document in documents for mark in changes.steps_of(document)]
    if not marks:
        pytest.skip("the set has no step markers")
    after = max(mark["ts"] + mark["dur"] for mark in marks) + 10_000_000

    def with_more(document):
        return {**document, "traceEvents": [*document["traceEvents"], *late_events(document, after)]}

    found = analyzed([with_more(document) for document in documents])
    assert [rank.breakdown for rank in found.ranks] == [rank.breakdown for rank in report.ranks]
    assert found.verdict.bound == report.verdict.bound


def late_events(document, after):
    """Work of every kind, long after the last step; no collective, which would tell more of the clocks."""
    kernels = (e for e in document["traceEvents"] if e.get("cat") in ("kernel", "Kernel"))
    kernel = next((e for e in kernels if "nccl" not in e["name"]), None)
    main = next(e for e in document["traceEvents"] if e.get("cat") == "user_annotation")
    where = {"ph": "X", "pid": main["pid"], "tid": main["tid"]}
    yield {**where, "cat": "cpu_op", "name": "aten::mm", "ts": after, "dur": 5_000}
    yield {**where, "cat": "cuda_runtime", "name": "cudaMalloc", "ts": after + 6_000, "dur": 5_000}
    if kernel is not None:
        args = {**kernel.get("args", {}), "correlation": 8_999_999_999}
        yield {**kernel, "ts": after, "dur": 5_000, "args": args}


def test_noise_of_one_percent_flips_no_verdict(name):
    documents, report = loaded(name)
    first = 10 * list(SETS).index(name)
    noisy = analyzed([changes.warped(document, first + rank) for rank, document in enumerate(documents)])
    assert noisy.verdict.bound == report.verdict.bound
