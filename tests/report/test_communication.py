"""Ranks and collectives in words."""

import msgspec
import pytest

from profilerkit.model.communication import Communication, LateRank
from profilerkit.model.report import Collective
from profilerkit.report import html, markdown, terminal, view
from tests.report.samples import SAMPLES
from tests.report.test_view import spaces


def changed(report, **fields):
    return msgspec.structs.replace(report, **fields)


def with_communication(report, **fields):
    return changed(report, communication=changed(report.communication, **fields))


@pytest.fixture
def several():
    return SAMPLES["multi_rank"]()


def test_who_waits_for_whom_stands_in_every_format(several):
    built = view.build(several)
    assert len(built.waiting) == 3
    texts = (
        spaces(html.render(several, explorer=False)),
        spaces(terminal.render(several, width=200)),
        spaces(markdown.render(several).replace("\\", "")),
    )
    for text in texts:
        for line in built.waiting:
            assert line in text


def test_the_late_rank_is_told_with_its_count_its_share_and_its_cause(several):
    first = view.build(several).waiting[0]
    assert first.startswith("The others wait for rank 5: it is last in 110 of 120 collectives and causes ")
    assert "97 % of all waiting" in first
    assert "Before, it spends 57.0 ms a step more than the others on: waiting for data" in first
    assert "98 % of the exposed waiting, 2.0 % is not explained" in first


def test_without_a_cause_the_waiting_is_unattributed(several):
    late = changed(several.communication.late[0], cause=None, cause_ns=None, coverage=0.4)
    assert (
        view.build(with_communication(several, late=(late,)))
        .waiting[0]
        .endswith("What makes it late is not explained: what it does longer explains 40 %.")
    )


def test_a_rank_that_causes_most_of_the_waiting_is_named_though_it_may_be_an_accident(several):
    report = with_communication(several, late=())
    line = view.build(report).waiting[0]
    assert line.startswith("Rank 5 causes 100 % of the waiting over 118 judged steps, too unevenly")
    assert "by turns" not in line


def test_that_nobody_is_late_is_said(several):
    alike = changed(several, ranks=tuple(changed(rank, caused_ns=1) for rank in several.ranks))
    assert "No rank is late beyond accident" in view.build(with_communication(alike, late=())).waiting[0]


def test_with_too_few_steps_it_is_said_how_many_it_takes(several):
    line = view.build(with_communication(several, late=(), steps=3, steps_needed=7)).waiting[0]
    assert line == "No rank is clearly late in 3 judged steps: record at least 7 to be sure."


def test_a_rank_that_is_likely_late_is_said_to_be_with_what_settles_it(several):
    late = changed(several.communication.late[0], few_steps=True)
    line = view.build(with_communication(several, late=(late,), steps=1, steps_needed=3)).waiting[0]
    assert line.startswith("Rank 5 is likely late: it is last in 110 of 120 collectives and causes ")
    assert "of all waiting. Before, it spends" in line


def test_a_host_too_busy_to_call_a_rank_late_is_said_with_how_far_ends_lie_apart(several):
    line = view.build(with_communication(several, late=(), blurred=True, residual_ns=5_230_000)).waiting[0]
    assert line.startswith("Rank 5 causes ")
    assert line.endswith("its host is too busy to call it late: the ends of one collective lie 5.23 ms apart.")


def test_where_members_were_not_read_nothing_is_called_transfer(several):
    lines = view.build(with_communication(several, transfer_ns=None)).waiting
    assert any("at least 94 % waiting; in the rest they may have waited for ranks" in line for line in lines)
    assert not any("transfer" in line for line in lines)


def test_how_collectives_were_matched_is_told(several):
    assert view.build(several).waiting[-1] == (
        "120 of 124 collectives matched by process group and number; ends agree within 12.0 µs (median)."
    )
    shifted = with_communication(several, by="order", most_shift=1)
    assert "by their order, captures starting up to 1 collective apart;" in view.build(shifted).waiting[-1]


def test_ranks_that_did_not_match_claim_nothing(several):
    (line,) = view.build(changed(several, communication=Communication(of=8, problems=("x",)))).waiting
    assert "no rank is called late" in line


def test_ranks_that_did_not_match_may_be_told_by_their_timers(several):
    found = Communication(of=8, problems=("x",), late_by_timers=1)
    report = changed(several, communication=found, verdict=changed(several.verdict, rank=None))
    assert "only the timers point at a rank: rank 1." in view.build(report).waiting[0]


def test_one_rank_waits_for_nobody():
    built = view.build(SAMPLES["input_bound"]())
    assert (built.waiting, built.ledger) == ((), None)


def test_the_ledger_begins_with_the_rank_that_causes_most(several):
    ledger = view.build(several).ledger
    assert ledger.columns == ("Rank", "Last in", "Caused per step", "Share", "Own wait", "Clock ahead by")
    assert ledger.rows[0][:2] == ("Rank 5", "110 of 120")
    assert ledger.rows[0][4] == "0 ns"
    assert ledger.rows[0][5] == "-5.00 µs ± 12.0 µs"
    assert len(ledger.rows) == 32
    assert ledger.more == "32 ranks more in the JSON."
    per_step = (58_000_000 * 63 * 118) / 118
    assert ledger.rows[0][2] == f"{per_step / 1e9:.2f} s"


def test_the_reference_and_a_rank_that_could_not_be_aligned_have_no_offset(several):
    ranks = (changed(several.ranks[0], caused_ns=10**12), changed(several.ranks[1], clock_offset_ns=None))
    rows = {row[0]: row[5] for row in view.build(changed(several, ranks=ranks)).ledger.rows}
    assert rows == {"Rank 0": "reference", "Rank 1": "not aligned"}


def test_parallelism_is_told_as_derived_with_its_evidence(several):
    facts = {fact.label: (fact.value, fact.note) for fact in view.build(several).run}
    assert facts["Parallelism, sharded data"] == ("8 ranks", "derived from FullyShardedDataParallel.forward")
    assert facts["Parallelism, pipeline"][0] == (
        "4 ranks; 31 % of the step in exposed transfers between stages, 27 % expected of 8 microbatches"
    )
    unknown = view.build(with_communication(several, parallelism=())).run
    assert ("Parallelism", "unknown", "no group or name tells") in {(f.label, f.value, f.note) for f in unknown}


def collective(**fields):
    known = {"name": "allreduce", "count": 4, "total_ns": 4_000, "exposed_ns": 1_000, "kind": "all_reduce"}
    return Collective(**{**known, **fields})


def cells(report, *rows):
    table = view.build(changed(report, collectives=rows)).collectives
    return table.caption, [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def test_a_matched_collective_shows_what_it_waited_and_how_fast_it_moved(several):
    caption, (row,) = cells(
        several,
        collective(wait_ns=1_000, transfer_ns=3_000, bus_bytes_per_s=118e9, link_ratio=0.79, bytes=1 << 20),
    )
    assert (row["Kind"], row["Waiting"], row["Transfer"]) == ("all-reduce", "1.00 µs", "3.00 µs")
    assert (row["Bus GB/s"], row["Of link"]) == ("118", "79 %")
    assert "≥" not in caption


def test_bandwidth_that_counts_waiting_is_a_lower_bound(several):
    caption, (row,) = cells(several, collective(bus_bytes_per_s=5.678e9, bandwidth_is_bound=True))
    assert row["Bus GB/s"] == "≥ 5.68"
    assert "≥: the time holds waiting" in caption
    assert not {"Waiting", "Transfer", "Of link", "Bytes"} & set(row)
    assert cells(several, collective(bus_bytes_per_s=5e6))[1][0]["Bus GB/s"] == "< 0.01"


def test_the_share_of_the_link_is_a_bound_as_well_and_a_partly_matched_row_is_none(several):
    bound = collective(bus_bytes_per_s=5e9, link_ratio=0.2, bandwidth_is_bound=True)
    assert cells(several, bound)[1][0]["Of link"] == "≥ 20 %"
    assert cells(several, collective(bus_bytes_per_s=5e9, link_ratio=0.2, matched=3))[1][0]["Bus GB/s"] == "5"


def test_bytes_that_were_derived_and_kinds_that_are_not_known_are_said(several):
    caption, _ = cells(several, collective(bytes=5, bytes_source="derived"))
    assert "Bytes of allreduce are derived from operator shapes" in caption
    assert "not known" not in caption
    unclassified = with_communication(several, unclassified_ratio=0.34)
    assert (
        "Of 34 % of the communication time the kind of collective is not known." in cells(unclassified, collective())[0]
    )


def test_a_late_rank_whose_file_does_not_say_its_number_is_named_by_its_file(several):
    late = LateRank(
        rank=None, origin="x.json", share=0.9, last=1, of=2, cause=None, cause_ns=None, waited_ns=0, coverage=None
    )
    assert view.build(with_communication(several, late=(late,))).waiting[0].startswith("The others wait for x.json:")
