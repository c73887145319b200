"""Real jobs of several ranks: every line that is known about them is in the report."""

import json
from pathlib import Path

import pytest

from profilerkit.api import analyze
from profilerkit.model.finding import in_order
from profilerkit.report import html, terminal
from tests.report.pages import spaces

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
MANIFEST = TRACES / "MANIFEST.json"

pytestmark = [
    pytest.mark.shared_traces,
    pytest.mark.skipif(not MANIFEST.is_file(), reason=f"no shared traces beside the repository, at {TRACES}"),
]


def report_of(name):
    entry = json.loads(MANIFEST.read_text("utf-8"))["sets"][name]
    report = analyze(*(TRACES / file["file"] for file in entry["files"]))
    assert report.verdict.bound not in entry["verdict_never"]
    return report


def told(report):
    """What every format says, in one line each."""
    texts = (
        html.render(report),
        terminal.render(report, width=120, verbose=True),
    )
    return [spaces(text) for text in texts]


#: Of three steps by the device, collectives that the hosts issued before the first mark belong to none.
LATE = {
    # set: late rank, last in, of, waiting caused and its share, share of the step that others wait, cause, collectives
    "torchrec_late_rank_1s": (2, "12 of 12", "9.11 s", "100 %", 0.91, "over.python", "12 of 13", 1),
    "torchrec_late_rank_20ms": (2, "13 of 26", "359 ms", "91 %", 0.094, "over.python", "31 of 32", 1),
    "torchrec_sleep_removed": (2, "18 of 26", "342 ms", "90 %", 0.068, None, "27 of 31", 4),
    "megatron_tp2": (0, "12 of 13", "48.2 ms", "100 %", 0.82, None, "13 of 13", 0),
}


@pytest.mark.parametrize("name", LATE)
def test_the_late_rank_is_named_by_the_waiting_it_causes(name):
    rank, last, caused, share, waited, cause, matched, shift = LATE[name]
    report = report_of(name)
    (late,) = report.communication.late
    assert (late.rank, f"{late.last} of {late.of}", report.verdict.rank) == (rank, last, rank)
    assert cause is None or late.cause == cause
    assert report.communication.most_shift == shift
    assert report.communication.residual_ns < 50_000
    others = [entry for entry in report.ranks if entry.rank != rank]
    waiting = sorted(sum(p.share for p in entry.breakdown if p.part == "comm.skew") for entry in others)
    assert waiting[len(waiting) // 2] == pytest.approx(waited, abs=0.02)
    for text in told(report):
        said = f"rank {rank}: it is last in" if not late.few_steps else f"Rank {rank} is likely late: it is last in"
        said += f" {last} collectives and causes {caused} over all ranks and steps, {share} of all"
        assert said in text
        assert f"{matched} collectives matched by their order" in text
        assert f"of the step for rank {rank}" in text


def test_a_second_of_sleep_is_found_as_python_on_the_host_of_rank_2():
    report = report_of("torchrec_late_rank_1s")
    (late,) = report.communication.late
    assert report.verdict.bound == "overhead-bound"
    assert report.verdict.headline.startswith("Rank 2 ")
    assert late.cause_ns == pytest.approx(1.001e9, rel=0.01)
    assert late.coverage == pytest.approx(1.0)
    finding = next(f for outcome, f in in_order(report.outcomes) if outcome.rule == "CO003")
    assert (finding.bound, finding.rank) == ("overhead-bound", 2)
    assert finding.saving.expected == pytest.approx(0.91, abs=0.02)


@pytest.mark.parametrize("name", ["torchrec_late_rank_20ms", "torchrec_sleep_removed"])
def test_what_no_cause_explains_is_called_unattributed(name):
    report = report_of(name)
    assert report.communication.late[0].coverage < 0.95
    assert all("is not explained" in text for text in told(report))


def test_of_a_tensor_parallel_pair_the_share_of_transfer_is_told():
    report = report_of("megatron_tp2")
    waiting = next(entry for entry in report.ranks if entry.rank == 1)
    assert waiting.waited_ns / report.communication.time_ns == pytest.approx(0.989, abs=0.002)
    assert all("99 % waiting for the last to arrive, 1.1 % transfer" in text for text in told(report))
    assert all("tensor" in text for text in told(report)[:1])


def test_two_ranks_of_128_say_that_the_others_are_missing_and_that_these_two_do_not_match():
    report = report_of("sampled_2_of_128")
    assert report.run.missing_ranks == 126
    assert report.communication.matched == 0
    assert all("126 of 128 ranks are missing" in text for text in told(report))
    assert any("could not be matched" in note for note in report.trust.notes)
    assert report.verdict.rank is None


def test_from_one_rank_of_eight_transfer_and_waiting_are_not_told_apart():
    report = report_of("resnet_actckpt_mi300")
    assert report.verdict.bound == "comm-bound"
    assert all("look the same" in text or "told apart" in text for text in told(report))
    parts = {part.part for part in report.breakdown}
    assert "comm.other" in parts
    assert not parts & {"comm.skew", "comm.bw", "comm.lat"}
    # The kernels without a kind are those that were queued before the recording, which belong to no step.
    assert report.communication.unclassified_ratio == 0.0


def test_metadata_gives_bytes_kind_and_bandwidth():
    rows = {(row.kind, row.dtype): row for row in report_of("nccl_args").collectives}
    reduced = rows["all_reduce", "Float"]
    assert (reduced.count, reduced.bytes, reduced.bytes_source, reduced.group_size) == (15, 306_684_384, "measured", 2)
    # 2 (n - 1) / n of two ranks is 1.
    assert reduced.bus_bytes_per_s == reduced.algorithm_bytes_per_s == pytest.approx(6.56e9, rel=0.01)


def test_all_to_all_that_nccl_runs_as_send_and_receive_is_told_by_its_annotation():
    kinds = {row.kind for row in report_of("ddp8_control").collectives}
    assert kinds == {"all_to_all", "all_reduce"}
