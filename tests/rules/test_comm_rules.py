"""Rules about communication: each fires, passes, abstains, and turns where its thresholds say."""

import pytest

from profilerkit.analysis.communication.table import (
    Accumulation,
    CollectiveWork,
    CommFacts,
    Contention,
    Engine,
    ReducerWork,
    Traffic,
)
from profilerkit.analysis.ranks.waiting import LATENCY_FLOOR_NS
from profilerkit.diagnosis.verdict import diagnose
from profilerkit.hardware import lookup
from profilerkit.model.communication import Communication, DistributedModel, Parallelism
from profilerkit.model.memory import Memory
from profilerkit.model.report import Collective, Compute
from profilerkit.model.run import Loader, Signal, Trust
from profilerkit.model.step import Rank
from profilerkit.rules import RULES
from profilerkit.rules.api import SMALLEST_SAVING, Fired, MissingData, NotApplicable, Passed
from profilerkit.rules.comm.exposed_collectives import ExposedCollectives
from profilerkit.rules.input.starved_device import StarvedDevice
from profilerkit.rules.runner import run_rules
from tests.recipes import INPUT, STEP_NS, facts, parts, replace

CODES = ("CO002", "CO004", "CO005", "CO006", "CO007", "CO008", "CO009", "CO010", "CO011", "CO012")
RULE = {rule.code: rule for rule in RULES if rule.code in CODES}
A100 = lookup("NVIDIA A100-SXM4-80GB")
LINK = A100.link_gb_per_s * 1e9
JUST = 1e-6
GB = 1_000_000_000
MB = 1_000_000
#: What the large collectives of a good link reach.
GOOD = 0.8 * LINK
BY_DDP = Parallelism(name="data", size=8, evidence="DistributedDataParallel.forward")
BY_FSDP = Parallelism(name="sharded data", size=8, evidence="process group fsdp")
BY_STAGES = Parallelism(
    name="pipeline", size=4, evidence="PipelineStage", micro_batches=8, bubble_share=0.3, schedule_share=3 / 11
)


def check(code, known, **options):
    return replace(RULE[code], **options).check(known)


def ended(code, known, **options):
    return type(check(code, known, **options))


def finding(code, known, **options):
    result = check(code, known, **options)
    assert isinstance(result, Fired), result
    (only,) = result.findings
    return only


def row(exposed, hidden=0.0, *, kind="all_reduce", size="middle", per_step=4.0, moved=100 * MB, **changes):
    """Traffic that exposes and hides these shares of the step."""
    known = {
        "kind": kind,
        "dimension": None,
        "dtype": "Float",
        "group_size": 8,
        "size": size,
        "per_step": per_step,
        "bytes_per_step": moved,
        "transfer_ns": (exposed + hidden) * STEP_NS,
        "exposed_ns": exposed * STEP_NS,
        "median_ns": (exposed + hidden) * STEP_NS / per_step,
    }
    return Traffic(**{**known, **changes})


def sent(*rows, alone=0.5, collective_work=None, by=(BY_DDP,), ddp=(), transfer="comm.bw", **changes):
    """A step of eight matched ranks with this traffic; ``alone`` of it computes in the backward pass beside none."""
    exposed = sum(entry.exposed_ns for entry in rows)
    total = sum(entry.transfer_ns for entry in rows)
    comm = CommFacts(
        step_ns=float(STEP_NS),
        per_step=sum(entry.per_step for entry in rows),
        total_ns=total,
        exposed_ns=exposed,
        alone_compute_ns=alone * STEP_NS,
        small_ratio=0.0,
        table=(Collective(name="allreduce", count=80, total_ns=1, exposed_ns=1),),
    )
    base = CollectiveWork(
        step_ns=float(STEP_NS),
        traffic=tuple(rows),
        exposed_ns=exposed,
        transfer_ns=total,
        backward_alone_ns=alone * STEP_NS,
        passes=1,
    )
    known = {
        "comm": comm if rows else None,
        "collective_work": replace(base, **(collective_work or {})),
        "communication": Communication(matched=80, of=80, parallelism=by, ddp=ddp),
        "world_size": 8,
        "missing_ranks": 0,
        "spec": A100,
        **changes,
    }
    return facts({transfer: exposed / STEP_NS} if rows else {}, **known)


def unread(**changes):
    """A run of eight ranks of which no trace was read."""
    none = dict.fromkeys(("device", "copies", "syncs", "allocator", "math", "chains"))
    return facts(mode="steps", trust=Trust(mode="steps"), trace_read=False, world_size=8, **{**none, **changes})


def on_host(*rows, **changes):
    return replace(sent(*rows, **changes), mode="cpu")


def unmatched(known):
    """The same run of which only one rank was read."""
    shares = {("comm.other" if part.part == "comm.bw" else part.part): part.share for part in known.parts}
    return replace(known, parts=parts(shares), missing_ranks=7)


def linked(ratio, *, exposed=0.3, **changes):
    """Large collectives at a share of what a good link carries."""
    return sent(row(exposed, size="large", bus_bytes_per_s=ratio * GOOD), **changes)


def small(count=500.0, *, median=30_000, exposed=None, large=0.0, floor=40_000, **changes):
    """Many small messages, all exposed, and ``large`` others per step."""
    share = count * median / STEP_NS if exposed is None else exposed
    rows = [row(share, size="small", per_step=count, moved=4_000 * count, median_ns=median)]
    rows += [row(0.0, 0.1, per_step=large)] if large else []
    return sent(*rows, collective_work={"floor_ns": floor}, **changes)


def sharded(*, gathered=2.0, free=0.8, exposed=0.2, again=0.1, dtype="BFloat16", moved=2 * GB, **changes):
    """FSDP that gathers ``gathered`` times as many elements as it scatters."""
    rows = (
        row(exposed, kind="all_gather", size="large", dtype=dtype, moved=gathered * moved),
        row(0.05, kind="reduce_scatter", size="large", dtype="Float", moved=2 * moved),
    )
    memory = Memory(capacity_bytes=80 * GB, peak_reserved_bytes=round((1.0 - free) * 80 * GB))
    collective_work = {"second_gathers_exposed_ns": again * STEP_NS}
    return sent(*rows, collective_work=collective_work, by=(BY_FSDP,), **{"memory": memory, **changes})


def accumulated(early=0.2, *, passes=4, **changes):
    """Reductions in each of several passes; all but the last expose ``early`` of the step."""
    found = Accumulation(
        passes=passes, reductions=3, early_ns=1.5 * early * STEP_NS, early_exposed_ns=early * STEP_NS, transfer_ns=1.0
    )
    return sent(row(early / 0.75, early), collective_work={"passes": passes, "accumulation": found}, **changes)


def reducing(copies=0.1, search=0.0, *, ddp=(), **changes):
    """DDP's reducer that copies and searches for these shares of the step."""
    work = ReducerWork(
        searches=1.0 if search else 0.0,
        search_ns=search * STEP_NS,
        copies=60.0 if copies else 0.0,
        copy_ns=copies * STEP_NS,
    )
    return sent(row(0.1), collective_work={"reducer": work}, ddp=ddp, **changes)


def driven(name="DataParallel", share=0.3, **changes):
    """A run whose engine keeps the device waiting."""
    shares = parts({"comm.other": share, "compute.math": 1.0 - share})
    return sent(collective_work={"engine": Engine(name, share * STEP_NS)}, **{"parts": shares, **changes})


def wide(exposed=0.3, hidden=0.1, *, precision="bf16", moved=10 * MB, **changes):
    """FP32 reductions of a run that computes in ``precision``."""
    return sent(row(exposed, hidden, moved=moved), compute=Compute(precision=precision), **changes)


def piped(bubble=0.3, *, batches=8, stages=4, **changes):
    """A pipeline that idles ``bubble`` of the step."""
    share = (stages - 1) / (batches + stages - 1) if batches and stages else None
    entry = Parallelism(
        name="pipeline",
        size=stages,
        evidence="PipelineStage",
        micro_batches=batches,
        bubble_share=bubble,
        schedule_share=share,
    )
    return sent(row(bubble or 0.0, kind="send_recv"), by=(entry,), **changes)


def contended(slower=0.3, *, usual=0.4, exposed=0.01, compared=1.0, **changes):
    """Kernels that take ``slower`` longer beside collectives than alone; ``compared`` of their time could be."""
    taken = usual * (1.0 + slower) * STEP_NS
    found = Contention(
        groups=5,
        kernels=80,
        usual_ns=compared * usual * STEP_NS,
        excess_ns=compared * slower * usual * STEP_NS,
        beside_ns=taken,
    )
    return sent(row(exposed, 0.3), collective_work={"contention": found}, **changes)


SHAPES = Trust(mode="gpu", inflation_ratio=1.0, signals=(Signal(name="operator shapes", state="measured"),))

FIRES = {
    "CO002": sent(row(0.3, 0.1)),
    "CO004": linked(0.3),
    "CO005": small(),
    "CO006": sharded(),
    "CO007": accumulated(),
    "CO008": reducing(),
    "CO009": driven(),
    "CO010": wide(),
    "CO011": piped(),
    "CO012": contended(),
}
PASSES = {
    "CO002": sent(row(0.02, 0.3)),
    "CO004": linked(0.9),
    "CO005": sent(row(0.3)),
    "CO006": sharded(gathered=1.0),
    "CO007": sent(row(0.3), collective_work={"passes": 2}),
    "CO008": reducing(0.001),
    "CO009": sent(row(0.3)),
    "CO010": wide(0.001),
    "CO011": piped(0.01),
    "CO012": contended(0.05),
}
MISSING = {
    **dict.fromkeys(CODES, unread()),
    "CO004": sent(row(0.3, size=None, bytes_per_step=None)),
    "CO006": sharded(memory=Memory()),
    "CO007": sent(row(0.3), collective_work={"passes": None}),
    "CO010": wide(precision=None),
    "CO011": piped(stages=1),
    "CO012": sent(row(0.3)),
}
NOT_APPLICABLE = {
    **dict.fromkeys(CODES, facts()),
    "CO002": sent(row(0.3, kind="all_to_all")),
    "CO004": sent(row(0.3)),
    "CO006": sent(row(0.3)),
    "CO007": sent(row(0.3)),
    "CO008": sent(row(0.3), by=()),
    "CO009": on_host(row(0.3)),
    "CO010": wide(precision="fp32"),
    "CO011": sent(row(0.3)),
    "CO012": sent(row(0.3), trust=SHAPES),
}

#: (rule, option): just fires, just does not.
THRESHOLDS = {
    ("CO002", "overlap_ratio"): (sent(row(0.3001, 0.6999)), sent(row(0.3, 0.7))),
    ("CO002", "smallest_share"): (sent(row(0.05), alone=0.9), sent(row(0.05 - JUST), alone=0.9)),
    ("CO002", "available_ratio"): (sent(row(0.4), alone=0.2), sent(row(0.4), alone=0.2 - JUST)),
    ("CO004", "slow_ratio"): (linked(0.6 - JUST), linked(0.6)),
    ("CO005", "small_ratio"): (
        small(30, median=100_000, large=70.0, floor=100_000),
        small(29, median=100_000, large=71.0, floor=100_000),
    ),
    ("CO005", "floor_factor"): (small(median=100_000), small(median=100_001)),
    ("CO006", "gathered_ratio"): (sharded(gathered=1.5), sharded(gathered=1.5 - JUST)),
    ("CO006", "free_ratio"): (sharded(free=0.4), sharded(free=0.4 - JUST)),
    ("CO011", "unequal_ratio"): (piped(0.3), piped(0.01)),
    ("CO012", "slower_ratio"): (contended(0.1 + JUST), contended(0.1 - JUST)),
}


@pytest.mark.parametrize("code", CODES)
def test_the_rule_fires(code):
    assert ended(code, FIRES[code]) is Fired


@pytest.mark.parametrize("code", CODES)
def test_the_rule_passes_with_the_number_that_says_so(code):
    result = check(code, PASSES[code])
    assert isinstance(result, Passed), result
    assert result.reason


@pytest.mark.parametrize("code", CODES)
def test_the_rule_abstains_without_its_signal_and_says_how_to_record_it(code):
    for known in (MISSING[code], unread()):
        result = check(code, known)
        assert isinstance(result, MissingData), result
        assert result.reason
        assert result.hint


@pytest.mark.parametrize("code", CODES)
def test_the_rule_is_not_about_runs_without_its_subject(code):
    result = check(code, NOT_APPLICABLE[code])
    assert isinstance(result, NotApplicable), result
    assert result.reason


@pytest.mark.parametrize(("code", "option"), THRESHOLDS)
def test_a_threshold_lies_where_it_says(code, option):
    above, below = THRESHOLDS[code, option]
    assert ended(code, above) is Fired
    assert ended(code, below) is Passed


def test_every_threshold_is_tried_on_both_sides():
    elsewhere = {
        ("CO004", "normal_ratio"),
        ("CO009", "saved_ratio"),
        ("CO010", "left_ratio"),
        ("CO011", "more_micro_batches"),
        ("CO012", "compared_ratio"),
        ("CO012", "most_exposed"),
    }
    assert set(THRESHOLDS) | elsewhere == {
        (code, name) for code, rule in RULE.items() for name in rule.__struct_fields__
    }


def test_on_a_host_joining_saves_the_calls_between_the_messages_too():
    known = replace(small(), mode="cpu")
    collective_work = replace(known.collective_work, burst_ns=0.6 * STEP_NS)
    assert finding("CO005", replace(known, collective_work=collective_work)).saving.expected == pytest.approx(0.6)
    path = row(0.1, kind="all_to_all", size="small")  # what the next operator waits for cannot be joined
    mixed = replace(known, collective_work=replace(collective_work, traffic=(*collective_work.traffic, path)))
    assert finding("CO005", mixed).saving.expected < 0.3


def test_a_wait_for_data_that_only_hides_a_collective_is_no_finding():
    loader = Loader(kind="DataLoader", num_workers=0)
    known = facts({"comm.bw": 0.4, "input.fetch": 0.2}, input=INPUT, loader=loader, usable_cores=8.0)
    collective_work = replace(sent(row(0.4)).collective_work, under_input_ns=0.2 * STEP_NS)
    hides = replace(known, collective_work=collective_work)
    assert isinstance(StarvedDevice().check(known), Fired)
    assert "collectives run that it needs" in StarvedDevice().check(hides).reason


@pytest.mark.parametrize(("alone", "detail"), [(0.2, "no-overlap"), (0.2 - JUST, "bandwidth")])
def test_what_nothing_could_hide_is_limited_by_its_size(alone, detail):
    (found,) = ExposedCollectives().check(sent(row(0.4), alone=alone)).findings
    assert found.detail == detail


@pytest.mark.parametrize("code", CODES)
def test_no_rule_speaks_within_the_noise_of_the_step_time(code):
    noisy = replace(FIRES[code], step_error_ns=0.5 * STEP_NS)
    assert ended(code, noisy) is Passed


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("alike", [True, False])
def test_a_saving_is_ordered_below_its_bound_and_below_the_step(code, alike):
    known = FIRES[code] if alike else unmatched(FIRES[code])
    if isinstance(check(code, known), Fired):
        saving = finding(code, known).saving
        assert 0.0 <= saving.low <= saving.expected <= saving.high <= 1.0
        assert saving.expected >= SMALLEST_SAVING


@pytest.mark.parametrize("code", CODES)
def test_a_finding_says_what_was_seen_what_to_do_and_how_to_check_it(code):
    found = finding(code, FIRES[code])
    assert found.evidence
    assert all(entry.label and entry.origin and entry.unit and entry.value is not None for entry in found.evidence)
    assert found.title
    assert found.why.endswith(".")
    assert found.fix.text
    assert found.confirm


@pytest.mark.parametrize("code", ["CO002", "CO005", "CO006", "CO007", "CO010"])
def test_from_one_rank_of_several_only_the_bound_is_known(code):
    found = finding(code, unmatched(FIRES[code]))
    assert (found.saving.method, found.saving.low, found.confidence) == ("bound", 0.0, "low")
    assert "may be waiting for a late rank" in found.why
    assert found.confirm.startswith("Record every rank")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("CO002", "bucket_cap_mb 25 (its default) → 10"),
        ("CO004", "72.0 GB/s → 240 GB/s"),
        ("CO005", "500 messages a step → one per kind"),
        ("CO006", "reshard_after_forward True → False"),
        ("CO007", "Reductions per step 12 → 3: no_sync()"),
        ("CO008", "gradient_as_bucket_view False → True"),
        ("CO009", "DataParallel → DistributedDataParallel"),
        ("CO010", "fp32 → bf16: 9.54 MiB → 4.77 MiB"),
        ("CO011", "Micro-batches 8 → 16"),
        ("CO012", "→ 8"),
    ],
)
def test_a_fix_names_the_current_and_the_proposed_value(code, text):
    assert text in finding(code, FIRES[code]).fix.text


@pytest.mark.parametrize(
    ("code", "detail"),
    [
        ("CO002", "no-overlap"),
        ("CO004", "bandwidth"),
        ("CO005", "latency"),
        ("CO006", "bandwidth"),
        ("CO007", "bandwidth"),
        ("CO009", "engine"),
        ("CO010", "bandwidth"),
        ("CO011", "bubble"),
        ("CO012", "contention"),
    ],
)
def test_what_costs_a_tenth_of_the_step_is_communication(code, detail):
    found = finding(code, FIRES[code])
    assert (found.bound, found.detail) == ("comm-bound", detail)
    verdict = diagnose(FIRES[code], run_rules(FIRES[code], RULES))
    assert verdict.bound == "comm-bound"
    assert len(verdict.headline.split()) <= 14


def test_settings_of_ddp_are_no_verdict_of_their_own():
    assert finding("CO008", reducing()).bound is None


# CO002


def test_no_more_is_hidden_than_the_backward_pass_computes():
    known = replace(
        sent(row(0.4), alone=0.3),
        collective_work=replace(sent(row(0.4)).collective_work, backward_alone_ns=0.22 * STEP_NS),
    )
    saving = finding("CO002", known).saving
    assert (saving.expected, saving.high) == (pytest.approx(0.22), pytest.approx(0.22))


def test_what_is_gathered_may_run_beside_the_whole_step():
    gathers = row(0.2, kind="all_gather")
    known = sent(gathers, alone=0.5, by=(BY_FSDP,), collective_work={"backward_alone_ns": 0.0})
    found = finding("CO002", known)
    assert found.saving.high == pytest.approx(0.2)
    assert "forward prefetch 0 → 1" in found.fix.text


@pytest.mark.parametrize(("per_step", "expected"), [(4.0, 0.3), (1.0, 0.2)])
def test_the_last_piece_has_nothing_left_to_hide_behind(per_step, expected):
    assert finding("CO002", sent(row(0.4, per_step=per_step))).saving.expected == pytest.approx(expected)


def test_smaller_buckets_are_counted_on_where_ddp_told_its_cap():
    model = DistributedModel(module="Net", backend="nccl", bucket_cap_bytes=100 << 20, parameter_bytes=400 << 20)
    found = finding("CO002", sent(row(0.4), ddp=(model,)))
    assert "bucket_cap_mb 100 → 10" in found.fix.text
    assert found.saving.expected == pytest.approx(0.4 - 0.4 / 40)


@pytest.mark.parametrize(
    ("cap", "size", "said"),
    [(25, 400, "25 → 10,"), (11, 400, "11 → 10,"), (10, 400, "10 → 5,"), (25, 20, "25 → 5,"), (25, 2, "25 → 1,")],
)
def test_buckets_are_made_small_enough_that_the_model_fills_several(cap, size, said):
    model = DistributedModel(module="Net", backend="gloo", bucket_cap_bytes=cap << 20, parameter_bytes=size << 20)
    found = finding("CO002", sent(row(0.4), ddp=(model,)))
    assert f"bucket_cap_mb {said}" in found.fix.text


def test_buckets_larger_than_the_default_are_told_as_large_as_they_are():
    text = finding("CO002", sent(row(0.4, moved=4 * 200 * (1 << 20)))).fix.text
    assert "bucket_cap_mb 200 → 10" in text


def test_buckets_at_the_latency_already_are_not_divided():
    result = check("CO002", sent(row(0.4, per_step=50.0, moved=50 * 1_900_000)))
    assert isinstance(result, Passed)
    assert "would only add latency" in result.reason
    assert ended("CO002", sent(row(0.4, per_step=50.0, moved=50 * 2 * MB))) is Fired


def test_without_ddp_each_collective_is_started_early():
    found = finding("CO002", sent(row(0.4), by=()))
    assert "Start each of the 4 collectives" in found.fix.text
    assert "async_op=True" in found.fix.code


@pytest.mark.parametrize(
    "changes",
    [
        {"collective_work": {"before_backward_ratio": 0.05}},
        {"collective_work": {"backward_alone_ns": None}},
        {"by": (Parallelism(name="tensor", size=8, evidence="process group tp"),)},
    ],
)
def test_collectives_that_the_next_operator_waits_for_are_left_out(changes):
    assert ended("CO002", sent(row(0.4), **{"by": (), **changes})) is NotApplicable


@pytest.mark.parametrize(
    ("kind", "by", "result"),
    [
        ("reduce_scatter", BY_DDP, Fired),
        ("unknown", BY_DDP, Fired),
        ("all_gather", BY_FSDP, Fired),
        ("all_gather", BY_DDP, NotApplicable),
        ("broadcast", BY_DDP, NotApplicable),
        ("send_recv", BY_STAGES, NotApplicable),
        ("barrier", BY_DDP, NotApplicable),
    ],
)
def test_gradients_and_sharded_parameters_may_overlap(kind, by, result):
    assert ended("CO002", sent(row(0.4, kind=kind), by=(by,))) is result


def test_what_the_description_of_a_group_says_decides():
    tensor, data = row(0.2, dimension="tensor"), row(0.3, dimension="data")
    found = finding("CO002", sent(tensor, data, by=()))
    assert found.saving.high == pytest.approx(0.3)


# CO004


def test_a_quicker_link_saves_at_most_what_is_exposed_and_what_the_transfers_lose():
    """E 30 %, Q 40 % at a third of the rate: not E * 2/3 = 20 % but min(E, Q * 2/3) = 27 %."""
    known = sent(row(0.3, 0.1, size="large", bus_bytes_per_s=GOOD / 3))
    saving = finding("CO004", known).saving
    assert (saving.expected, saving.high) == (pytest.approx(0.8 / 3), pytest.approx(0.8 / 3))


def test_the_reference_is_what_good_links_reach():
    assert ended("CO004", linked(0.59)) is Fired
    assert ended("CO004", linked(0.59), normal_ratio=0.7) is Passed


@pytest.mark.parametrize(
    ("known", "result"),
    [
        (linked(0.3, spec=None), MissingData),
        (linked(0.3, spec=lookup("NVIDIA H100 PCIe")), MissingData),
        (linked(0.3, spec=lookup("NVIDIA L4")), MissingData),
        (linked(0.3, world_size=9), NotApplicable),
        (linked(0.3, world_size=None), NotApplicable),
        (replace(linked(0.3), mode="cpu"), NotApplicable),
        (sent(row(0.3, size="large")), MissingData),
    ],
)
def test_where_the_link_or_the_transfers_are_not_known_no_link_is_called_slow(known, result):
    assert ended("CO004", known) is result


def test_large_collectives_that_are_hidden_need_no_better_link():
    assert ended("CO004", sent(row(0.0, 0.4, size="large", bus_bytes_per_s=0.1 * GOOD), row(0.2))) is Passed


# CO005


def test_of_many_messages_the_latency_of_one_stays():
    found = finding("CO005", small(101, median=30_000))
    assert found.saving.expected == pytest.approx(100 * 30_000 / STEP_NS)
    assert found.saving.high == pytest.approx(101 * 30_000 / STEP_NS)


def test_a_message_that_takes_longer_than_the_floor_keeps_its_bytes_time():
    assert finding("CO005", small(101, median=80_000)).saving.expected == pytest.approx(100 * 40_000 / STEP_NS)


def test_without_other_ranks_the_floor_is_that_of_good_links():
    known = small(101, median=100_000, floor=None)
    assert finding("CO005", known).saving.expected == pytest.approx(100 * LATENCY_FLOOR_NS / STEP_NS)
    assert ended("CO005", small(101, median=2.5 * LATENCY_FLOOR_NS + 1, floor=None)) is Passed


def test_small_messages_on_the_data_path_are_not_joined():
    tensor = (Parallelism(name="tensor", size=8, evidence="process group tp"),)
    assert ended("CO005", small(by=tensor)) is Passed


def test_a_cap_below_the_default_is_raised_to_it():
    model = DistributedModel(module="Net", backend="nccl", bucket_cap_bytes=1 << 20)
    assert "bucket_cap_mb 1 → 25" in finding("CO005", small(ddp=(model,))).fix.text


def test_sizes_that_are_not_known_are_asked_for():
    assert ended("CO005", sent(row(0.3, size=None, bytes_per_step=None))) is MissingData


# CO006


def test_of_parameters_gathered_twice_what_the_second_time_exposes_is_saved():
    saving = finding("CO006", sharded(exposed=0.2, again=0.08)).saving
    assert (saving.expected, saving.high) == (pytest.approx(0.08), pytest.approx(0.1))


def test_elements_are_compared_and_not_bytes():
    assert ended("CO006", sharded(dtype="Float", gathered=2.0)) is Passed


def test_parameters_that_would_not_fit_are_not_kept():
    result = check("CO006", sharded(free=0.45, moved=21 * GB))
    assert isinstance(result, Passed)
    assert "too little of the free memory" in result.reason


def test_memory_seen_by_all_processes_counts_where_the_allocator_did_not_tell():
    used = Memory(capacity_bytes=80 * GB, peak_device_used_bytes=10 * GB)
    assert ended("CO006", sharded(memory=used)) is Fired
    on_the_host = Memory(capacity_bytes=80 * GB, peak_reserved_bytes=10 * GB, place="host")
    assert ended("CO006", sharded(memory=on_the_host)) is MissingData


@pytest.mark.parametrize("missing", [{"size": None, "bytes_per_step": None}, {"dtype": None}])
def test_without_sizes_and_types_nothing_is_said_of_the_volume(missing):
    rows = [replace(entry, **missing) for entry in sharded().collective_work.traffic]
    assert ended("CO006", sent(*rows, by=(BY_FSDP,))) is MissingData


# CO007


def test_ranks_that_are_late_by_turns_wait_less_with_fewer_reductions():
    plain = accumulated(0.2)
    ranks = tuple(
        Rank(rank=rank, origin=f"{rank}", breakdown=parts({"comm.skew": share}), busy_ratio=None, step_ns=STEP_NS)
        for rank, share in enumerate((0.1, 0.06))
    )
    turns = replace(plain, ranks=ranks)
    more = finding("CO007", turns).saving.expected - finding("CO007", plain).saving.expected
    assert more == pytest.approx(0.08 / 2)
    late = replace(turns, waiting_share=0.1)
    assert finding("CO007", late).saving.expected == finding("CO007", plain).saving.expected


def test_copies_into_buckets_go_with_the_reductions_that_repeat():
    work = ReducerWork(searches=0.0, search_ns=0.0, copies=60.0, copy_ns=0.04 * STEP_NS, fill_ns=0.08 * STEP_NS)
    plain = accumulated(0.2)
    copying = replace(plain, collective_work=replace(plain.collective_work, reducer=work))
    more = finding("CO007", copying).saving.expected - finding("CO007", plain).saving.expected
    assert more == pytest.approx(0.12 * 3 / 4)


def test_the_reductions_of_all_passes_but_the_last_are_saved():
    found = finding("CO007", accumulated(0.2))
    assert (found.saving.expected, found.saving.high) == (pytest.approx(0.2), pytest.approx(0.8 / 3))
    assert "no_sync()" in found.fix.code


def test_sharded_gradients_are_told_in_the_words_of_fsdp():
    found = finding("CO007", accumulated(0.2, by=(BY_FSDP,)))
    assert "set_requires_gradient_sync(False)" in found.fix.text
    assert "stay in memory" in found.fix.text


def test_early_reductions_that_are_hidden_cost_nothing():
    found = Accumulation(passes=4, reductions=3, early_ns=0.5 * STEP_NS, early_exposed_ns=0.0, transfer_ns=1.0)
    assert ended("CO007", sent(row(0.2, 0.5), collective_work={"passes": 4, "accumulation": found})) is Passed


# CO008


def ddp(**changes):
    return DistributedModel(module="Net", backend="nccl", **changes)


def test_the_search_is_switched_off_where_every_parameter_got_a_gradient():
    known = reducing(0.0, 0.06, ddp=(ddp(find_unused_parameters=True, unused_parameter_bytes=0),))
    found = finding("CO008", known)
    assert "find_unused_parameters True → False (every parameter got a gradient)" in found.fix.text
    assert found.saving.expected == pytest.approx(0.06)
    assert "(if every parameter gets a gradient)" in finding("CO008", reducing(0.0, 0.06)).fix.text


def test_a_search_that_is_needed_is_kept_and_said_to_be():
    model = ddp(find_unused_parameters=True, unused_parameter_bytes=4096)
    result = check("CO008", reducing(0.0, 0.06, ddp=(model,)))
    assert isinstance(result, Passed)
    assert "need the search" in result.reason
    found = finding("CO008", reducing(0.05, 0.06, ddp=(model,)))
    assert "find_unused_parameters" not in found.fix.text + found.fix.code
    assert "the search of the graph is needed" in found.why
    assert found.saving.expected == pytest.approx(0.05)


def test_the_map_of_parameters_in_use_goes_with_the_search():
    work = ReducerWork(searches=1.0, search_ns=0.03 * STEP_NS, copies=0.0, copy_ns=0.0)
    known = sent(row(0.1), row(0.02, size="small", dtype="Int", per_step=1.0), collective_work={"reducer": work})
    assert finding("CO008", known).saving.expected == pytest.approx(0.05)


def test_a_reducer_without_extra_work_passes():
    assert ended("CO008", sent(row(0.3))) is Passed


# CO009


def test_gloo_beside_a_device_is_replaced():
    found = finding("CO009", driven("gloo"))
    assert "gloo → nccl" in found.fix.text
    assert (found.saving.expected, found.saving.high) == (pytest.approx(0.21), pytest.approx(0.3))
    assert finding("CO009", driven("gloo"), saved_ratio=0.5).saving.expected == pytest.approx(0.15)


def test_an_engine_that_costs_nothing_is_let_be():
    assert ended("CO009", driven(share=0.02)) is Passed


# CO010


def test_half_the_bytes_save_half_the_transfers_less_the_casts():
    moved = 100 * MB
    casts = 3 * moved / (0.9 * A100.hbm_gb_per_s) / STEP_NS
    saving = finding("CO010", wide(0.2, 0.4, moved=moved)).saving
    assert (saving.expected, saving.high) == (pytest.approx(0.2 - casts), pytest.approx(0.2))
    assert finding("CO010", wide(0.2, 0.4, spec=None)).saving.expected == pytest.approx(0.2)
    quarter = finding("CO010", wide(0.2, 0.2, spec=None), left_ratio=0.75).saving
    assert quarter.expected == pytest.approx(0.1)


def test_casts_that_cost_as_much_as_they_save_are_not_advised():
    assert ended("CO010", wide(0.05, moved=10 * GB)) is Passed


@pytest.mark.parametrize(
    ("changes", "result"),
    [
        ({"dtype": "BFloat16"}, Passed),
        ({"dtype": None}, MissingData),
        ({"size": "small"}, Passed),
        ({"kind": "all_gather"}, Passed),
        ({"dimension": "tensor"}, Passed),
    ],
)
def test_only_gradients_in_fp32_count(changes, result):
    known = sent(replace(row(0.3), **changes), compute=Compute(precision="bf16"))
    assert ended("CO010", known) is result


def test_a_hook_that_decides_what_travels_is_let_be():
    assert ended("CO010", wide(ddp=(ddp(hook="powerSGD_hook"),))) is Passed


def test_fsdp_is_told_its_own_setting():
    assert "reduce_dtype=torch.bfloat16" in finding("CO010", wide(by=(BY_FSDP,))).fix.code


# CO011


def test_twice_the_micro_batches_leave_the_bubble_that_the_schedule_does():
    """4 stages: 3/11 of the step idle with 8 micro-batches, 3/19 with 16."""
    saving = finding("CO011", piped(3 / 11)).saving
    assert (saving.expected, saving.high) == (pytest.approx(3 / 11 - 3 / 19), pytest.approx(3 / 11))
    more = finding("CO011", piped(3 / 11), more_micro_batches=4)
    assert "8 → 32" in more.fix.text
    assert more.saving.expected == pytest.approx(3 / 11 - 3 / 35)


@pytest.mark.parametrize("unknown", [{"batches": None}, {"stages": None}, {"bubble": None}])
def test_what_does_not_show_of_a_pipeline_is_asked_for(unknown):
    assert ended("CO011", piped(**unknown)) is MissingData


@pytest.mark.parametrize(("bubble", "said"), [(1.5 * 3 / 11, True), (1.5 * 3 / 11 - JUST, False)])
def test_stages_that_idle_far_more_than_the_schedule_explains_are_unequal(bubble, said):
    found = finding("CO011", piped(bubble))
    assert ("stages of unequal length" in found.why) is said
    assert found.fix.text.startswith("Move layers") is said


def test_the_transfers_of_a_pipeline_are_told_by_its_own_rule():
    outcomes = {entry.rule: entry.status for entry in run_rules(piped(0.3), RULES)}
    assert (outcomes["CO001"], outcomes["CO011"]) == ("passed", "fired")


# CO012


def test_the_time_beyond_the_usual_is_saved():
    saving = finding("CO012", contended(0.25, usual=0.4)).saving
    assert (saving.expected, saving.high) == (pytest.approx(0.1), pytest.approx(0.5))


@pytest.mark.parametrize(("compared", "expected"), [(0.1 + JUST, 0.1), (0.1 - JUST, 0.01)])
def test_a_tenth_that_could_be_compared_speaks_for_the_rest(compared, expected):
    known = contended(0.25, usual=0.4, compared=compared)
    result = check("CO012", known)
    if expected >= SMALLEST_SAVING:
        assert result.findings[0].saving.expected == pytest.approx(expected)
    else:
        assert "1.0 % of the step" in result.reason


def test_slower_collectives_are_not_advised_where_they_hold_the_step_already():
    found = finding("CO012", contended(0.3, exposed=0.05))
    assert (found.bound, found.saving, found.fix) == (None, None, None)
    assert "would make that longer" in found.why
    assert finding("CO012", contended(0.3, exposed=0.05 - JUST)).fix is not None


# together


def test_where_the_best_finding_leaves_the_fix_to_others_the_verdict_tells_what_the_best_fix_saves():
    known = sent(row(0.3, 0.2), alone=0.5, collective_work={"backward_alone_ns": 0.22 * STEP_NS})
    outcomes = run_rules(known, RULES)
    verdict = diagnose(known, outcomes)
    assert (verdict.bound, verdict.detail) == ("comm-bound", "bandwidth")
    assert verdict.saving.expected == pytest.approx(0.175)
    assert "The best fix saves" in verdict.consequence


def test_a_run_of_one_rank_without_a_trace_has_no_collectives_to_miss():
    for code in ("CO002", "CO004", "CO005", "CO006", "CO007", "CO008", "CO010", "CO011", "CO012"):
        assert ended(code, replace(unread(), world_size=1)) is NotApplicable
