"""Every rule: fires, passes, abstains on a missing signal, just above and just below each threshold."""

from itertools import pairwise

import pytest

from profilerkit.analysis.communication.table import CommFacts
from profilerkit.analysis.device.copies import CopyFacts
from profilerkit.analysis.device.device_facts import AllocatorFacts, ChainFacts, ColdFacts, SyncFacts
from profilerkit.analysis.device.roofline import MathFacts, WideMath
from profilerkit.analysis.host.host_facts import GAPS
from profilerkit.analysis.memory.use import CopiedPages, MemoryUse
from profilerkit.analysis.ranks.waiting import LATENCY_FLOOR_NS
from profilerkit.analysis.steps.series import Doubt, Stall
from profilerkit.analysis.whatif import HANDOVER_NS
from profilerkit.analysis.workers.queue import EpochFacts, LoadingFacts
from profilerkit.diagnosis.verdict import diagnose
from profilerkit.hardware import lookup
from profilerkit.model import revise
from profilerkit.model.communication import Communication, LateRank
from profilerkit.model.memory import AliveAtPeak, Memory, MemoryGrowth
from profilerkit.model.report import Collective, HostCopy
from profilerkit.model.run import Loader, Series, Trust
from profilerkit.model.step import PARTS, WHOLE_TRACE, Rank, SlowSteps, Steps, StepTimes
from profilerkit.report import terminal
from profilerkit.report.findings import first_sentence
from profilerkit.rules import RULES
from profilerkit.rules.api import SMALLEST_SAVING, Fired, MissingData, NotApplicable, Passed
from profilerkit.rules.calibrated import calibrated
from profilerkit.rules.runner import run_rules
from tests.recipes import DEVICE, GEMM, INPUT, MS, STEP_NS, facts, made, parts, replace, steps

RULE = {rule.code: rule for rule in RULES}
A100 = lookup("NVIDIA A100-SXM4-80GB")
V100 = lookup("Tesla V100-SXM2-32GB")
LINK = A100.pcie_gb_per_s * 1e9
NO_STEPS = Steps(count=0, steady=0, dropped={}, found_by="nothing", inferred=True, time_ns=None)
JUST = 1e-6


def check(code, known, **options):
    return replace(RULE[code], **options).check(known)


def ended(code, known, **options):
    return type(check(code, known, **options))


def finding(code, known, **options):
    result = check(code, known, **options)
    assert isinstance(result, Fired), result
    (only,) = result.findings
    return only


def on_host(shares=None, **changes):
    """Facts without a device: the main thread stands for it."""
    none = dict.fromkeys(("device", "copies", "syncs", "allocator", "math", "chains"))
    return facts(shares, mode="cpu", trust=Trust(mode="cpu", inflation_ratio=1.0), **{**none, **changes})


def timers_only(shares=None, **changes):
    """Facts of a run of which no trace was read."""
    return replace(on_host(shares, **changes), mode="steps", trace_read=False)


def communicating(share, *, overlap=0.5, small=0.0, alone=0.5, per_step=4.0):
    """A step that exposes ``share`` of communication; ``alone`` of it computes with no communication beside it."""
    exposed = share * STEP_NS
    comm = CommFacts(
        step_ns=1e6,
        per_step=per_step,
        total_ns=exposed / (1.0 - overlap),
        exposed_ns=exposed,
        alone_compute_ns=alone * STEP_NS,
        small_ratio=small,
        table=(Collective(name="allreduce", count=80, total_ns=1, exposed_ns=1),),
    )
    return facts({"comm.other": share}, comm=comm, world_size=1)


RANKS = tuple(
    Rank(rank=rank, origin=f"rank{rank}.json", breakdown=(), busy_ratio=0.9, step_ns=STEP_NS) for rank in range(4)
)


def late(share, *, cause="over.python", jitter=0.01, coverage=0.9, others=(), **changes):
    """Ranks of which the judged one, rank 2, makes the others wait for ``share`` of the step."""
    found = LateRank(
        rank=2,
        origin="rank2.json",
        share=0.93,
        last=18,
        of=31,
        cause=cause,
        cause_ns=round(coverage * share * STEP_NS) if cause else None,
        waited_ns=round(share * STEP_NS),
        coverage=coverage,
    )
    matched = Communication(
        matched=31, of=32, by="order", residual_ns=19_000, steps=20, late=(found, *others) if share else ()
    )
    known = {"ranks": RANKS, "judged_rank": 2, "world_size": 4, "missing_ranks": 0, "communication": matched, **changes}
    return facts(waiting_share=share or None, jitter_share=jitter if share else None, **known)


def test_a_late_rank_is_named_though_evening_out_saves_less_than_others_wait():
    known = late(0.18, cause="compute.math", others=(), world_size=2, ranks=RANKS[:3])
    verdict = diagnose(known, run_rules(known, RULES))
    assert (verdict.bound, verdict.detail, verdict.rank) == ("compute-bound", "imbalance", 2)
    assert verdict.headline.startswith("Rank 2 computes")


def fp32(share, *, tensor=0.0, major=8, spec=A100):
    found = MathFacts(fp32_share=share, tensor_core_share=tensor, compute_major=major, example=GEMM)
    return facts(math=found, spec=spec)


def in_tf32(share, *, kind="tf32", narrow=0.0, **changes):
    """Math of 32 bits on the matrix units, none of it on the vector units."""
    known = fp32(0.0, tensor=share + narrow, **changes)
    wide = (WideMath(type=kind, share=share, priced_share=0.0),)
    return replace(known, math=replace(known.math, wide=wide, narrow_share=narrow))


def chained(share, length=5.0):
    return facts(
        {"compute.membw": share},
        chains=ChainFacts(share=share, chains_per_step=10.0, mean_length=length, example=("add", "mul", "relu")),
    )


def utilised(busy, useful, **changes):
    return facts({"compute.small": 1.0 - useful}, device=replace(DEVICE, busy_ratio=busy), **changes)


def waiting(share, **changes):
    """A loader with four workers that holds the step."""
    return facts({"input.wait": share}, **{"loader": Loader(kind="DataLoader", num_workers=4), **changes})


def worked(share, workers, **changes):
    """A loader whose ``workers`` were recorded and that holds the step, on a host with room for more."""
    return waiting(share, **{"workers": workers, "usable_cores": 16.0, **changes})


def alone(share, **changes):
    """A loader without workers that holds the step."""
    return facts(
        {"input.prep": share},
        **{"loader": Loader(kind="DataLoader", num_workers=0), "usable_cores": 8.0, **changes},
    )


def copying(share, *, rate=3e9, spec=A100, per_step=1.0):
    """Pageable copies at ``rate`` bytes per second that take ``share`` of the step, all exposed."""
    time_ns = share * STEP_NS
    copies = CopyFacts(
        per_step=per_step, bytes_per_step=rate * time_ns * 1e-9, time_ns=time_ns, exposed_ns=share * STEP_NS
    )
    return facts({"input.h2d": share}, copies=copies, spec=spec)


def allocating(share, *, calls=3.0):
    return facts({"mem.alloc": share}, allocator=AllocatorFacts(calls_per_step=calls))


def issuing(share, part="over.dispatch", **changes):
    return facts({part: share}, **changes)


def reading(reads, per_step=0.0, blocked=0.5, awaited=1.0):
    """Host syncs: ``reads`` of values however short, and ``per_step`` calls that waited."""
    calls = (("cudaStreamSync", 60),)
    return SyncFacts(
        per_step=per_step, blocked_ns=blocked * STEP_NS, culprits=calls, awaited_ratio=awaited, reads_per_step=reads
    )


def syncing(per_step, share=0.2, *, busy=0.5, blocked=0.5, copying=0.0, awaited=1.0):
    syncs = reading(0.0, per_step, blocked, awaited)
    shares = {"sync.drain": share - copying, "sync.d2h": copying}
    return facts(shares, syncs=syncs, device=replace(DEVICE, busy_ratio=busy))


def stalling(share, kind="checkpoint", part="other.ckpt", source="measured"):
    stall = Stall(
        kind=kind, part=part, count=4, period=10, excess_ns=300.0 * MS, share=share, source=source, steps=(9, 39)
    )
    return facts(stalls=(stall,))


def short_step(share, step_ns=50 * MS - 100_000):
    """A loader without workers that holds ``share`` of a step of ``step_ns``."""
    return replace(alone(share), steps=steps(step_ns=step_ns), step_ns=float(step_ns))


FULL_HOST = Series(name="host.cpu", unit="ratio", n=9, mean=0.95, p10=0.9, p90=1.0, maximum=1.0)


def cold(share, steady=20):
    return facts(cold=ColdFacts(share=share, calls=(("cudaFree", 4_000 * MS),)), steady=steady)


GB = 10**9


def full(ratio, *, in_use=0.9, **memory):
    """A device of 100 GB of which ``ratio`` is reserved, and ``in_use`` of that allocated at the peak."""
    known = Memory(
        peak_reserved_bytes=round(ratio * 100 * GB), capacity_bytes=100 * GB, fragmentation_ratio=1.0 - in_use
    )
    return facts(memory=revise(known, **memory))


def growing(total, *, of="allocated", grows=True, over=101, n=None, **memory):
    """Memory that grew by ``total`` bytes within ``over`` steps, with room for 50 GB."""
    slope = total / (over - 1)
    n = over if n is None else n
    known = {"steps_to_full": 50 * GB / slope, "ns_to_full": round(50 * GB / slope * STEP_NS)} if n >= 50 else {}
    row = MemoryGrowth(
        of=of,
        bytes_per_step=slope,
        low_bytes_per_step=0.9 * slope,
        high_bytes_per_step=1.1 * slope,
        n=n,
        first_step=1,
        last_step=over,
        grows=grows,
        headroom_bytes=50 * GB,
        **known,
    )
    return facts(memory=Memory(growth=(row,), **memory))


def uneven(cv=0.3, *, p99=None, mean=1.1, part="input.wait", share=0.09, **changes):
    """Steady steps of which one is ``share`` of the time too long; ``part`` holds nine tenths of that."""
    slow = SlowSteps(
        count=1,
        excess_ns=1_900 * MS,
        share=share,
        part=part,
        part_excess_ns=1_710 * MS if part else None,
        coverage=0.9 if part else None,
        first=57,
        last=57,
    )
    times = StepTimes(median=STEP_NS, mean=round(mean * STEP_NS), p99=p99, cv_ratio=cv)
    return facts(steps=steps(time_ns=times, slow=slow), **changes)


FIRES = {
    "CO001": communicating(0.2),
    "CO003": late(0.3),
    "CP001": fp32(0.5),
    "CP004": chained(0.5),
    "CP008": utilised(0.95, 0.3),
    "IN001": waiting(0.4),
    "IN002": alone(0.4),
    "IN003": worked(0.4, made(fetch=0.4)),
    "IN005": worked(0.4, made(core=0.3), usable_cores=8.0),
    "IN006": worked(0.4, made(fetch=0.8)),
    "IN007": worked(0.4, made()),
    "IN008": worked(0.4, made(collate=0.5, handover=0.2, fetch=0.3)),
    "IN009": copying(0.3),
    "ME001": allocating(0.1),
    "ME003": full(0.95),
    "ME004": growing(GB),
    "OV001": issuing(0.3),
    "OV002": syncing(8.0),
    "RU003": facts(steady=4),
    "RU004": uneven(),
}
PASSES = {
    "CO001": communicating(0.01),
    "CO003": late(0.0),
    "CP001": fp32(0.02),
    "CP004": chained(0.05),
    "CP008": utilised(0.95, 0.9),
    "IN001": waiting(0.01),
    "IN002": alone(0.01),
    "IN003": worked(0.4, made(busy_ratio=0.5)),
    "IN005": worked(0.4, made()),
    "IN006": worked(0.4, made()),
    "IN007": worked(0.4, made(fetch=0.8)),
    "IN008": worked(0.4, made()),
    "IN009": facts(copies=CopyFacts(per_step=0.0, bytes_per_step=0.0, time_ns=0.0, exposed_ns=0.0)),
    "ME001": facts(),
    "ME003": full(0.5),
    "ME004": growing(GB, grows=False),
    "OV001": facts(),
    "OV002": syncing(1.0, 0.05),
    "RU003": facts(),
    "RU004": facts(),
}
MISSING = {
    "CO001": timers_only(world_size=4),
    "CO003": timers_only(world_size=4),
    "CP001": fp32(0.5, major=None),
    "CP008": replace(timers_only(), device=None),
    "IN001": replace(waiting(0.4), input=None),
    "IN002": replace(alone(0.4), input=None),
    **dict.fromkeys(("IN003", "IN005", "IN006", "IN007", "IN008"), waiting(0.4)),
    "OV001": timers_only({"over.python": 0.5}),
    "OV002": timers_only(),
    "CP004": timers_only(),
    "IN009": timers_only(),
    "ME001": timers_only(),
    "ME003": facts(),
    "ME004": facts(),
    "RU003": facts(steps=NO_STEPS, step_ns=None),
    "RU004": facts(steps=steps(1, time_ns=StepTimes(median=STEP_NS, mean=STEP_NS))),
}
NOT_APPLICABLE = {
    "CO001": facts(),
    "CO003": facts(),
    "CP001": on_host(),
    "CP004": on_host(),
    "CP008": on_host(),
    "IN002": waiting(0.4),
    **dict.fromkeys(("IN003", "IN005", "IN006", "IN007", "IN008"), alone(0.4)),
    "IN009": on_host(),
    "ME001": on_host(),
    "ME003": on_host(),
    "OV001": replace(issuing(0.5), cold=ColdFacts(share=0.5, calls=())),
    "OV002": on_host(),
}

#: (rule, option): just fires, just does not. Facts are on either side of the default value of the option.
THRESHOLDS = {
    ("CO001", "smallest_share"): (communicating(0.05), communicating(0.05 - JUST)),
    ("CP001", "most_narrow_ratio"): (in_tf32(0.5, narrow=0.05), in_tf32(0.5, narrow=0.05 + JUST)),
    ("CP001", "smallest_share"): (fp32(0.10), fp32(0.10 - JUST)),
    ("CP004", "smallest_share"): (chained(0.20), chained(0.20 - JUST)),
    ("CP008", "busy_ratio"): (utilised(0.90, 0.3), utilised(0.90 - JUST, 0.3)),
    ("CP008", "useful_share"): (utilised(0.95, 0.50 - JUST), utilised(0.95, 0.50 + 1e-12)),
    ("IN001", "smallest_share"): (waiting(0.05), waiting(0.05 - JUST)),
    ("IN002", "smallest_share"): (short_step(0.03, step_ns=400 * MS), short_step(0.03 - JUST, step_ns=400 * MS)),
    ("IN002", "smallest_wait_ns"): (short_step(0.1, step_ns=20 * MS), short_step(0.1, step_ns=20 * MS - 1_000)),
    ("IN003", "busy_ratio"): (worked(0.4, made(busy_ratio=0.9)), worked(0.4, made(busy_ratio=0.9 - JUST))),
    ("IN003", "awaited_ratio"): (
        worked(0.4, made(waited_ratio={"samples": 0.5, "arriving": 0.5})),
        worked(0.4, made(waited_ratio={"samples": 0.49, "arriving": 0.51})),
    ),
    ("IN003", "empty_ratio"): (
        worked(0.4, made(waited_ratio={}, queue_empty_ratio=0.5)),
        worked(0.4, made(waited_ratio={}, queue_empty_ratio=0.49)),
    ),
    ("IN006", "blocked_share"): (worked(0.4, made(fetch=0.5)), worked(0.4, made(fetch=0.5 - JUST))),
    ("IN007", "computing_share"): (worked(0.4, made(fetch=0.3)), worked(0.4, made(fetch=0.3 + JUST))),
    ("IN008", "smallest_share"): (worked(0.4, made(collate=0.2)), worked(0.4, made(collate=0.2 - JUST))),
    ("IN008", "on_its_way_share"): (
        worked(0.4, made(waited_ratio={"handover": 0.5})),
        worked(0.4, made(waited_ratio={"handover": 0.5 - JUST})),
    ),
    ("IN009", "slow_ratio"): (copying(0.9, rate=0.4999 * LINK), copying(0.9, rate=0.5001 * LINK)),
    ("OV001", "smallest_share"): (issuing(0.05), issuing(0.05 - JUST)),
    ("OV001", "host_smallest_share"): (on_host({"over.dispatch": 0.10}), on_host({"over.dispatch": 0.10 - JUST})),
    ("OV002", "most_per_step"): (syncing(2.0 + JUST, 0.05), syncing(2.0, 0.05)),
    ("OV002", "large_share"): (syncing(1.0, 0.10), syncing(1.0, 0.10 - JUST)),
    ("RU003", "fewest_steps"): (facts(steady=7), facts(steady=8)),
    ("RU003", "cold_share"): (cold(0.25), cold(0.25 - JUST)),
    ("ME003", "full_ratio"): (full(0.90), full(0.90 - JUST)),
    ("ME003", "in_use_ratio"): (full(0.95, in_use=0.80 + JUST), full(0.95, in_use=0.80 - JUST)),
    ("ME004", "smallest_growth_bytes"): (growing(100_000_000), growing(99_999_999)),
    ("ME004", "smallest_step_bytes"): (growing(50_000_000, over=51), growing(49_999_999, over=51)),
    ("RU004", "largest_cv_ratio"): (uneven(0.15 + JUST), uneven(0.15)),
    ("RU004", "tail_ratio"): (uneven(0.0, p99=round(1.5 * STEP_NS) + 1), uneven(0.0, p99=round(1.5 * STEP_NS))),
}


@pytest.mark.parametrize("code", FIRES)
def test_the_rule_fires(code):
    assert ended(code, FIRES[code]) is Fired


@pytest.mark.parametrize("code", PASSES)
def test_the_rule_passes_with_the_number_that_says_so(code):
    result = check(code, PASSES[code])
    assert isinstance(result, Passed), result
    assert result.reason


@pytest.mark.parametrize("code", MISSING)
def test_the_rule_abstains_without_its_signal_and_says_how_to_record_it(code):
    result = check(code, MISSING[code])
    assert isinstance(result, MissingData), result
    assert result.reason
    assert result.hint


@pytest.mark.parametrize("code", NOT_APPLICABLE)
def test_the_rule_is_not_about_runs_without_its_subject(code):
    result = check(code, NOT_APPLICABLE[code])
    assert isinstance(result, NotApplicable), result
    assert result.reason


@pytest.mark.parametrize(
    ("call", "reads", "fix"),
    [
        ("cudaDeviceSynchronize", 0.0, "Call torch.cuda.synchronize() every 50 steps"),
        ("hipEventSynchronize", 3.9, "Call event.synchronize() every 50 steps"),
        ("cudaEventSynchronize", 4.0, "Read values back every 50 steps"),
        ("cudaStreamSynchronize", 0.0, "Read values back every 50 steps"),
    ],
)
def test_a_wait_that_reads_nothing_is_not_told_to_read_less(call, reads, fix):
    known = syncing(8.0)
    syncs = replace(known.syncs, culprits=((call, 60),), reads_per_step=reads)
    assert finding("OV002", replace(known, syncs=syncs)).fix.text.startswith(fix)


@pytest.mark.parametrize("code", FIRES)
def test_every_rule_can_abstain(code):
    assert code in MISSING or code in NOT_APPLICABLE


@pytest.mark.parametrize(("code", "option"), THRESHOLDS)
def test_a_threshold_lies_where_it_says(code, option):
    above, below = THRESHOLDS[code, option]
    assert ended(code, above) is Fired
    assert ended(code, below) is Passed


@pytest.mark.parametrize("code", FIRES)
def test_no_rule_speaks_within_the_noise_of_the_step_time(code):
    if code in ("CP008", "ME003", "ME004", "RU003"):
        return  # observations without a saving, and risks
    if code == "CO003":
        return  # by the collectives of each step it is no accident, however much the steps differ
    noisy = replace(FIRES[code], step_error_ns=0.5 * STEP_NS)
    assert ended(code, noisy) is Passed


@pytest.mark.parametrize("code", FIRES)
def test_the_first_sentence_of_a_fix_is_whole_in_a_terminal(code):
    fixes = [found.fix.text for found in check(code, FIRES[code]).findings if found.fix is not None]
    assert all(len(first_sentence(text)) <= terminal.TITLE for text in fixes), fixes


@pytest.mark.parametrize("code", FIRES)
def test_a_saving_is_ordered_below_its_bound_and_below_the_step(code):
    for found in check(code, FIRES[code]).findings:
        if found.saving is not None:
            assert 0.0 <= found.saving.low <= found.saving.expected <= found.saving.high <= 1.0
            assert found.saving.expected >= SMALLEST_SAVING


@pytest.mark.parametrize("code", FIRES)
def test_a_finding_says_what_was_seen_what_to_do_and_how_to_check_it(code):
    for found in check(code, FIRES[code]).findings:
        assert found.evidence
        assert all(entry.label and entry.origin and entry.unit and entry.value is not None for entry in found.evidence)
        assert found.title
        assert found.why
        if found.bound is not None:
            assert found.saving is not None
            assert found.fix is not None or code == "CO001"  # leaves the fix to the rules about its causes
            assert found.confirm


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("CO003", "only this rank runs"),
        ("CP001", '"highest" → "high"'),
        ("CP004", "torch.compile fuses each chain"),
        ("IN001", "num_workers 4 → 7"),
        ("IN002", "num_workers 0 → 1"),
        ("IN003", "num_workers 4 → 8"),
        ("IN005", "Keep num_workers 4"),
        ("IN006", "remove the shared lock"),
        ("IN007", "faster decoder"),
        ("IN008", "join the samples into one tensor in one call"),
        ("IN009", "pin_memory False → True"),
        ("ME001", "fixed → expandable"),
        ("OV001", "one graph with torch.compile"),
        ("OV002", "every 50 steps instead of in each"),
    ],
)
def test_a_fix_names_the_current_and_the_proposed_value(code, text):
    known = waiting(0.3) if code == "IN001" else FIRES[code]
    assert text in finding(code, known).fix.text


def test_few_steady_steps_cap_the_confidence():
    by_steps = {}
    for steady in (1, 2, 7, 8):
        known = facts({"input.wait": 0.4}, steady=steady, loader=Loader(kind="DataLoader", num_workers=0))
        by_steps[steady] = finding("IN001", known).confidence
    assert by_steps == {1: "low", 2: "medium", 7: "medium", 8: "high"}


@pytest.mark.parametrize(
    ("trust", "confidence"),
    [({"truncated": True}, "low"), ({"dropped": 99}, "high"), ({"dropped": 100}, "low"), ({"repaired": 999}, "high")],
)
def test_what_a_trace_lost_caps_the_confidence(trust, confidence):
    known = facts({"input.wait": 0.4}, loader=Loader(kind="DataLoader", num_workers=0))
    known = replace(known, trust=revise(known.trust, events=1_000, **trust))
    assert finding("IN001", known).confidence == confidence


def test_every_threshold_is_tried_on_both_sides():
    tried = set(THRESHOLDS) | {
        ("CO001", "small_ratio"),
        ("CO001", "overlap_ratio"),
        ("CO001", "available_ratio"),
        ("CP001", "reached_power"),
        ("CP001", "least_power"),
        ("CP004", "reached_ratio"),
        ("CP004", "bandwidth_ratio"),
        ("CP008", "low_mfu"),
        ("CP008", "low_tensor_ratio"),
        ("CP008", "low_dram_ratio"),
        ("CP008", "low_power_ratio"),
        ("IN003", "blocked_share"),
        ("IN006", "stored_ratio"),
        ("IN006", "fewest_bytes"),
        ("IN006", "faster"),
        ("IN009", "pinned_ratio"),
        ("IN009", "most_times_faster"),
        ("IN009", "assumed_link_gb_per_s"),
        ("ME001", "smallest_share"),
        ("ME001", "fewest_faults"),
        ("ME001", "longest_fault_ns"),
        ("ME001", "fewest_retaken"),
        ("ME001", "smallest_given_back"),
        ("ME001", "fewest_samples"),
        ("OV001", "host_low_ratio"),
        ("OV001", "host_main_share"),
        ("OV001", "host_main_ratio"),
        ("OV001", "host_minor_share"),
        ("OV001", "host_minor_ratio"),
        ("OV001", "unmeasured_inflation_ratio"),
        ("OV001", "late_launch_ratio"),
        ("OV001", "ended_low_ratio"),
    }
    assert tried == {(rule.code, name) for rule in RULES if rule.code in FIRES for name in rule.__struct_fields__}


# CO001


@pytest.mark.parametrize(
    ("overlap", "small", "detail"),
    [
        (0.30, 0.0, "bandwidth"),
        (0.30 - JUST, 0.0, "no-overlap"),
        (0.0, 0.50, "latency"),
        (0.0, 0.50 - JUST, "no-overlap"),
        (0.5, 0.50 - JUST, "bandwidth"),
        (0.5, None, "no-overlap"),
    ],
)
def test_exposed_communication_is_told_apart_by_size_and_overlap(overlap, small, detail):
    many = 0.5 * STEP_NS / LATENCY_FLOOR_NS
    found = finding("CO001", communicating(0.2, overlap=overlap, small=small, per_step=many))
    assert (found.bound, found.detail) == ("comm-bound", detail)


def test_communication_with_nothing_to_hide_it_behind_gives_no_finding():
    assert ended("CO001", communicating(0.6, alone=0.01)) is Passed


def test_no_more_communication_is_hidden_than_there_is_computation():
    saving = finding("CO001", communicating(0.6, alone=0.25)).saving
    assert (saving.expected, saving.high) == (pytest.approx(0.25), pytest.approx(0.6))


@pytest.mark.parametrize(("per_step", "expected"), [(4.0, 0.15), (1.0, 0.1), (0.25, 0.1)])
def test_where_nothing_overlaps_the_last_collective_stays_exposed(per_step, expected):
    saving = finding("CO001", communicating(0.2, overlap=0.0, per_step=per_step)).saving
    assert (saving.expected, saving.high) == (pytest.approx(expected), pytest.approx(0.2))


def test_one_rank_of_several_cannot_tell_transfer_from_waiting():
    known = replace(communicating(0.2), world_size=8)
    found = finding("CO001", known)
    assert found.confidence == "low"
    assert "look the same" in found.why
    # Any part of it may be waiting, which no overlap saves.
    assert (found.saving.method, found.saving.low, found.saving.high) == ("bound", 0.0, pytest.approx(0.2))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"missing_ranks": 7}, "7 of 8 ranks are missing"),
        ({"missing_ranks": 1, "world_size": 2}, "1 of 2 ranks is missing"),
        ({"missing_ranks": 0}, "From one rank"),
    ],
)
def test_why_transfer_and_waiting_look_the_same_is_said(changes, said):
    known = replace(communicating(0.2), **{"world_size": 8, **changes})
    assert f"{said}: transfer and waiting" in finding("CO001", known).why


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({"missing_ranks": 1}, "Record every rank and analyze all of them together"),
        ({"missing_ranks": 0, "ranks": RANKS}, "Record the same steps on every rank, at least 3"),
        ({"missing_ranks": 0, "ranks": RANKS, "communication": Communication(matched=3, of=3)}, "Record every rank"),
    ],
)
def test_where_waiting_and_transfer_look_the_same_the_check_is_what_tells_them_apart_and_no_fix(changes, first):
    found = finding("CO001", replace(communicating(0.2), **{"world_size": 4, **changes}))
    assert found.fix is None
    assert found.confirm.startswith(first)


def test_where_every_rank_was_compared_nobody_is_asked_to_record_more():
    known = replace(communicating(0.3), parts=parts({"comm.bw": 0.3, "compute.math": 0.7}))
    found = finding("CO001", known)
    assert found.fix is None
    assert "every rank" not in found.confirm


def test_collectives_that_take_much_longer_than_usual_are_said_to_wait_probably():
    known = replace(communicating(0.2), world_size=8)
    assert "probably waiting" not in finding("CO001", known).why
    for surplus, said in ((0.099, False), (0.1, True)):
        unusual = replace(known, comm=replace(known.comm, surplus_ratio=surplus))
        assert ("probably waiting" in finding("CO001", unusual).why) is said


def test_a_run_of_one_rank_without_a_trace_has_no_collectives_to_miss():
    assert ended("CO001", timers_only(world_size=1)) is NotApplicable


def test_waiting_for_another_rank_is_no_communication_that_could_be_hidden():
    known = replace(communicating(0.3), parts=parts({"comm.bw": 0.03, "comm.skew": 0.27, "compute.math": 0.7}))
    assert ended("CO001", known) is Passed
    found = finding("CO001", replace(known, parts=parts({"comm.bw": 0.2, "comm.skew": 0.3, "compute.math": 0.5})))
    assert found.saving.high == pytest.approx(0.2)
    assert "look the same" not in found.why


def test_transfers_at_the_latency_floor_are_joined_and_a_single_one_is_left_alone():
    lat = parts({"comm.lat": 0.2, "comm.bw": 0.1, "compute.math": 0.7})
    known = replace(communicating(0.3, overlap=0.0), parts=lat)
    found = finding("CO001", known)
    assert (found.detail, found.saving.expected) == ("latency", pytest.approx(0.2 * 3 / 4))  # 4 messages → 1
    assert ended("CO001", replace(known, comm=replace(known.comm, per_step=1.0))) is Passed


def test_small_collectives_of_one_rank_that_take_far_longer_than_the_latency_are_waiting_and_not_latency():
    # Ten of 1 ms each in steps of 22 ms: the latency is 44 µs of each.
    found = finding("CO001", communicating(0.45, overlap=0.0, small=1.0, alone=0.5, per_step=10.0))
    assert found.detail != "latency"
    share = 0.6 * 0.2
    some = communicating(0.2, overlap=0.0, small=1.0, per_step=share * STEP_NS / LATENCY_FLOOR_NS)
    found = finding("CO001", some)
    assert found.detail == "latency"
    assert found.saving.expected == pytest.approx(share, rel=0.05)


# CO003


def test_a_rank_that_seems_late_on_a_busy_host_is_not_called_late():
    known = late(0)
    busy = replace(known, communication=revise(known.communication, blurred=True))
    assert check("CO003", busy).reason == "the host is too busy to measure how late a rank is"


def test_two_late_ranks_are_both_explained():
    other = revise(late(0.3).communication.late[0], rank=5, origin="rank5.json", cause="input.wait")
    found = finding("CO003", late(0.3, others=(other,)))
    assert "Rank 2 is last" in found.why
    assert "Rank 5 is last" in found.why
    assert found.fix.text.startswith("Rank 2: ")
    assert "Rank 5: Give this rank its data" in found.fix.text
    assert {row.rank for row in found.evidence} == {2, 5}


def test_a_late_rank_of_too_few_steps_is_likely_late_and_none_says_how_many_it_takes():
    known = late(0.8)
    few = revise(known.communication.late[0], few_steps=True)
    told = revise(known.communication, late=(few,), steps_needed=7)
    assert finding("CO003", known).confidence == "high"
    likely = finding("CO003", replace(known, communication=told))
    assert (likely.confidence, likely.rank) == ("low", 2)
    assert likely.title.endswith(" for rank 2, likely late")
    assert likely.why.endswith("Rank 2 is likely late: record at least 10 steps to be sure.")
    nobody = revise(known.communication, late=(), steps=3, steps_needed=7)
    result = check("CO003", replace(known, communication=nobody))
    assert result.reason == "no rank is clearly late in 3 judged steps: record at least 7"


@pytest.mark.parametrize(
    ("cause", "bound", "detail"),
    [
        ("input.wait", "input-bound", "wait"),
        ("input.prep", "input-bound", "prep"),
        ("compute.membw", "compute-bound", "imbalance"),
        ("mem.alloc", "memory-bound", "capacity"),
        ("over.python", "overhead-bound", "python"),
        ("over.dispatch", "overhead-bound", "launch"),
        ("over.gc", "overhead-bound", "gc"),
        ("sync.drain", "overhead-bound", "sync"),
        ("other.ckpt", "overhead-bound", "checkpoint"),
        ("warm.compile", "overhead-bound", "compile"),
    ],
)
def test_a_late_rank_is_bound_by_what_makes_it_late(cause, bound, detail):
    found = finding("CO003", late(0.3, cause=cause))
    assert (found.bound, found.detail, found.rank) == (bound, detail, 2)


def test_every_part_that_can_be_a_cause_has_a_remedy():
    for part in PARTS:
        if not part.startswith(("comm.", "idle.", "other.prof")):
            assert finding("CO003", late(0.3, cause=part)).fix, part


def test_lateness_without_a_cause_is_called_unattributed_and_bounds_nothing():
    found = finding("CO003", late(0.3, cause=None, coverage=0.4))
    assert (found.bound, found.fix, found.confidence) == (None, None, "medium")
    assert "not explained" in found.why
    assert "with_stack=True" in found.confirm


def test_what_the_cause_leaves_unexplained_is_said():
    assert "explains 90 % of it, the rest is not explained" in finding("CO003", late(0.3, coverage=0.9)).why
    assert "not explained" not in finding("CO003", late(0.3, coverage=1.0)).why


def test_the_jitter_that_would_be_left_is_not_saved():
    saving = finding("CO003", late(0.3, jitter=0.1)).saving
    assert (saving.expected, saving.high) == (pytest.approx(0.2), pytest.approx(0.3))


def test_two_ranks_that_are_late_together_are_both_named():
    second = LateRank(rank=5, origin="x", share=0.4, last=3, of=9, cause=None, cause_ns=None, waited_ns=1, coverage=0.0)
    assert finding("CO003", late(0.3, others=(second,))).title == (
        "The other ranks wait 30.0 ms of every step for rank 2 and rank 5"
    )


def test_a_late_rank_of_a_job_that_was_not_read_whole_is_told_with_less_confidence():
    assert finding("CO003", late(0.3)).confidence == "high"
    assert finding("CO003", late(0.3, missing_ranks=3)).confidence == "medium"


@pytest.mark.parametrize(
    ("known", "result"),
    [
        (late(0.3, communication=None), NotApplicable),
        (late(0.3, communication=Communication()), MissingData),
        (facts(world_size=8, communication=Communication()), MissingData),
        (facts(world_size=1, communication=Communication()), NotApplicable),
    ],
    ids=["no collective", "unmatched", "one of eight", "alone"],
)
def test_nobody_is_late_where_the_collectives_say_nothing(known, result):
    assert ended("CO003", known) is result


# CP001


def test_fp32_beside_more_tensor_core_math_is_left_alone():
    def beside(tensor):
        known = fp32(0.3, tensor=tensor)
        return replace(known, math=replace(known.math, narrow_share=tensor))

    assert ended("CP001", beside(0.3)) is Passed
    assert ended("CP001", beside(0.3 - JUST)) is Fired


def test_math_that_is_all_tf32_is_told_of_16_bit():
    found = finding("CP001", in_tf32(0.8))
    assert "autocast" in found.fix.code
    assert found.saving.high == pytest.approx(0.8 * (1 - 1 / 2))
    assert finding("CP001", in_tf32(0.8, spec=None)).saving is None


def test_attention_in_fp32_is_priced_as_three_tf32_products_and_not_told_of_tf32():
    found = finding("CP001", in_tf32(0.8, kind="3xtf32"))
    assert "autocast" in found.fix.code
    assert found.saving.high == pytest.approx(0.8 * (1 - 1 / 6))


def test_a_device_before_tensor_cores_has_no_faster_unit():
    assert ended("CP001", fp32(0.5, major=6)) is NotApplicable


def test_a_device_without_known_peaks_has_no_saving_to_state():
    found = finding("CP001", fp32(0.5, spec=None))
    assert found.saving is None
    assert "bfloat16" in found.fix.text
    assert "float16 with a gradient scaler" in finding("CP001", fp32(0.5, major=7, spec=None)).fix.text


def test_where_tf32_has_no_higher_peak_the_fix_is_16_bit():
    found = finding("CP001", fp32(0.5, spec=lookup("NVIDIA GeForce RTX 3060")))
    assert "bfloat16" in found.fix.code
    assert found.saving.high == pytest.approx(0.5 * (1 - 1 / 2), abs=0.001)


def test_parts_that_compute_fp32_on_matrix_units_are_not_judged_by_names():
    assert ended("CP001", fp32(0.5, major=9, spec=lookup("AMD Instinct MI210"))) is MissingData


def test_the_saving_of_tensor_cores_follows_the_peaks_of_the_device():
    found = finding("CP001", fp32(0.5))
    ratio = 156 / 19.5  # dense TF32 over FP32 TFLOPS of an A100
    assert found.saving.high == pytest.approx(0.5 * (1 - 1 / ratio))
    assert found.saving.expected == pytest.approx(0.5 * (1 - ratio**-0.65))
    assert finding("CP001", fp32(0.5), reached_power=0.8).saving.expected > found.saving.expected


def test_without_a_trace_nobody_knows_what_the_device_computed():
    assert ended("CP001", timers_only()) is MissingData


def test_before_tf32_the_fix_is_mixed_precision():
    assert "float16" in finding("CP001", fp32(0.5, major=7, spec=V100)).fix.text


# CP004


def test_the_bound_of_fusion_reads_once_and_writes_once():
    saving = finding("CP004", chained(0.5, length=4.0)).saving
    assert saving.high == pytest.approx(0.5 * (1 - 2 / 5))
    assert saving.expected == pytest.approx(0.6 * saving.high)
    assert finding("CP004", chained(0.5, length=4.0), reached_ratio=1.0).saving.expected == pytest.approx(saving.high)


def test_fewer_than_one_chain_per_step_are_not_counted_as_none():
    known = chained(0.5)
    rare = replace(known, chains=replace(known.chains, chains_per_step=0.3))
    assert finding("CP004", rare).title == "Chains of pointwise kernels take 50 % of the step"


def test_without_shapes_a_chain_is_told_with_low_confidence():
    assert finding("CP004", chained(0.5)).confidence == "low"


# CP008


def test_sampled_utilisation_counts_more_than_the_trace():
    def sampled(mean):
        return (Series(name="gpu.utilization", unit="ratio", n=10, mean=mean, p10=mean, p90=mean, maximum=mean),)

    assert ended("CP008", utilised(0.2, 0.3, samples=sampled(0.95))) is Fired
    assert ended("CP008", utilised(0.95, 0.3, samples=sampled(0.2))) is Passed


def test_an_occupied_device_is_an_observation_without_a_bound():
    found = finding("CP008", FIRES["CP008"])
    assert (found.bound, found.saving, found.fix) == (None, None, None)
    assert "mostly small kernels, below 10 µs, with" in found.why


# IN001


@pytest.mark.parametrize("part", ["prep", "fetch", "wait"])
def test_the_largest_input_part_is_the_detail(part):
    known = replace(waiting(0.1), parts=parts({f"input.{part}": 0.3, "compute.math": 0.7}))
    assert finding("IN001", known).detail == part


def test_a_wait_read_from_a_trace_is_less_sure_than_a_timed_one():
    assert finding("IN001", alone(0.4)).confidence == "high"
    assert finding("IN001", alone(0.4, input=replace(INPUT, source="derived"))).confidence == "medium"


def test_a_wait_for_workers_is_less_sure_because_their_own_time_is_not_known():
    assert finding("IN001", waiting(0.4)).confidence == "medium"


@pytest.mark.parametrize(
    "known",
    [
        waiting(0.4, usable_cores=1.0),
        waiting(0.4, samples=(FULL_HOST,)),
        facts({"input.wait": 0.4}, loader=Loader(kind="DataLoader", num_workers=16)),
    ],
    ids=["no core left", "full host", "most workers"],
)
def test_where_workers_cannot_help_the_batch_must_get_cheaper(known):
    found = finding("IN001", known)
    assert found.fix.text.startswith("Make batches sooner")
    assert (found.saving.expected, found.saving.high) == (pytest.approx(0.2), pytest.approx(0.4))


@pytest.mark.parametrize(("share", "times"), [(0.1, 2), (0.4, 2), (0.6, 3), (0.75, 5)])
def test_of_a_wait_for_what_others_make_most_goes_with_as_many_more_as_the_step_needs(share, times):
    found = finding("IN001", facts({"input.wait": share}, loader=None))
    assert f"num_workers × {times}," in found.fix.text
    assert (found.saving.expected, found.saving.high) == (pytest.approx(0.9 * share), pytest.approx(share))


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ("prep", "Prepare batches"),
        ("fetch", "blocked on reading"),
        ("ipc", "Hand batches over"),
        ("wait", "num_workers × 2"),
    ],
)
def test_a_cheaper_batch_is_asked_for_where_its_time_goes(part, text):
    found = finding("IN001", facts({f"input.{part}": 0.4}, loader=None))
    assert text in found.fix.text
    assert found.detail == part


FRAMES = (
    "owlv2/image_processing_owlv2.py(301): resize",
    "scipy/ndimage/_interpolation.py(739): zoom",
    "<built-in function zoom_shift>",
)


@pytest.mark.parametrize(("code", "queued"), [("IN001", 0.75), ("IN002", 0.85)])
def test_a_wait_for_a_processor_is_no_wait_for_data(code, queued):
    known = alone(0.2, input=replace(INPUT, queue_ratio=queued - 0.01))
    on_cores = replace(known, input=replace(INPUT, queue_ratio=queued + 0.01))
    assert ended(code, on_cores) is Passed
    if code == "IN001":  # IN002 proposes no worker from a fifth of the wait on
        found = finding(code, known)
        assert any(entry.value == pytest.approx(queued - 0.01) for entry in found.evidence)
        assert "waiting for a processor" in check(code, on_cores).reason


@pytest.mark.parametrize("rule", ["IN001", "IN002"])
def test_the_function_that_holds_the_wait_is_evidence(rule):
    found = finding(rule, alone(0.4, input=replace(INPUT, frames=FRAMES, frames_ratio=0.8)))
    entry = next(entry for entry in found.evidence if entry.label.startswith("Input wait in"))
    assert entry.label == "Input wait in zoom (ndimage/_interpolation.py:739)"
    assert (
        entry.origin
        == "resize (owlv2/image_processing_owlv2.py:301) → zoom (ndimage/_interpolation.py:739) → zoom_shift"
    )
    assert (entry.value, entry.source) == (0.8, "measured")


def test_the_function_that_holds_the_wait_is_why():
    known = alone(0.4, input=replace(INPUT, frames=FRAMES[-1:], frames_ratio=0.8))
    assert finding("IN001", known).why == "80 % of the wait is spent in zoom_shift."


def test_a_wait_that_only_its_place_tells_says_so():
    gap = replace(INPUT, source="derived", gap="before the copy", origin=GAPS["before the copy"])
    known = facts({"input.wait": 0.4}, source="derived", input=gap)
    found = finding("IN001", known)
    assert "copy of a batch" in found.why
    assert found.evidence[0].origin == GAPS["before the copy"]


@pytest.mark.parametrize(("hidden", "said"), [(0.01, True), (0.0099, False)])
def test_a_wait_hidden_behind_transfers_is_told_apart(hidden, said):
    found = finding("IN001", waiting(0.4, hidden={"input.wait": hidden, "over.python": 0.3}))
    labels = [entry.label for entry in found.evidence if entry.value == pytest.approx(hidden)]
    assert bool(labels) is said


def test_parts_held_alone_and_hidden_are_asked_for_like_shares():
    known = facts(alone={"input.wait": 0.2, "input.h2d": 0.1}, hidden={"over.python": 0.05})
    assert known.alone_share("input.") == pytest.approx(0.3)
    assert known.alone_share("input.wait") == pytest.approx(0.2)
    assert (known.hidden_share("over."), known.hidden_share("comm.")) == (pytest.approx(0.05), 0.0)


def test_the_saving_is_that_of_the_fix_that_is_printed():
    # 80 ms of waiting ask for 24 workers, two cores carry eight: twice as many as now, half of the step.
    found = finding("IN001", waiting(0.8, usable_cores=2.0))
    assert found.fix.text.startswith("num_workers 4 → 8,")
    assert found.saving.expected == pytest.approx(1 - 4 / 8)
    # Two workers more would save an eighth of the step, half of the wait is more.
    few = finding("IN001", facts({"input.wait": 0.8}, loader=Loader(kind="DataLoader", num_workers=14)))
    assert few.fix.text.startswith("Make batches sooner")
    assert few.saving.expected == pytest.approx(0.4)


def test_without_workers_the_fix_is_left_to_the_rule_about_workers():
    assert finding("IN001", alone(0.4)).fix is None
    assert finding("IN002", alone(0.4)).fix is not None


def test_without_workers_and_without_cores_the_transform_must_get_cheaper():
    known = alone(0.4, usable_cores=1.0, input=replace(INPUT, cpu_ratio=1.0))
    assert "with less work" in finding("IN001", known).fix.text
    assert "cores are the limit" in check("IN002", known).reason


def test_a_saving_within_the_noise_is_not_blamed_on_the_cores():
    known = alone(0.05, usable_cores=64.0, step_error_ns=0.04 * STEP_NS)
    assert "differ too much to be sure" in check("IN002", known).reason


def test_handing_over_a_batch_costs_as_much_as_a_wait_below_two_milliseconds():
    assert "1.99 ms" in check("IN002", short_step(0.1, step_ns=round(19.9 * MS))).reason
    assert ended("IN002", short_step(0.1, step_ns=20 * MS)) is Fired
    assert ended("IN002", short_step(0.4, step_ns=round(4.9 * MS)), smallest_wait_ns=1e6) is Fired


def test_copies_to_the_device_are_no_wait_for_the_loader():
    assert ended("IN001", facts({"input.h2d": 0.5})) is Passed


# IN002


def test_what_limits_the_step_with_workers_is_told_in_words():
    assert finding("IN002", FIRES["IN002"]).confirm.endswith(
        "What limits it afterwards is everything it does except loading."
    )


def test_an_unknown_loader_is_not_taken_for_one_without_workers():
    known = replace(alone(0.4), loader=None, input=replace(INPUT, single_process=None))
    assert ended("IN002", known) is MissingData


def test_a_single_process_iterator_in_a_trace_is_enough_and_less_sure():
    known = replace(alone(0.4), loader=None, input=replace(INPUT, single_process=True))
    assert finding("IN002", known).confidence == "medium"
    assert finding("IN002", alone(0.4)).confidence == "high"


def test_the_number_of_workers_follows_the_measured_rates():
    # 60 ms of loading against 40 of computing, with a margin of a fifth: 1.8 workers.
    found = finding("IN002", alone(0.6))
    assert "num_workers 0 → 2" in found.fix.text
    assert "num_workers=2" in found.fix.code
    # Computing takes 40 ms afterwards, and handing a batch over 1.6: 58.4 % are saved.
    assert found.saving.expected == pytest.approx(0.584)


# IN009


def test_without_a_known_link_the_slowest_one_is_assumed():
    slow, fast = copying(0.9, rate=7.8e9, spec=None), copying(0.9, rate=8.0e9, spec=None)
    assert finding("IN009", slow).confidence == "medium"
    assert ended("IN009", fast) is Passed
    assert ended("IN009", fast, assumed_link_gb_per_s=63.0) is Fired


@pytest.mark.parametrize(("rate", "pinned"), [(3e9, 7.5e9), (12e9, 0.85 * LINK)])
def test_pinned_copies_still_take_their_bytes_over_the_link(rate, pinned):
    # At most 2.5 times as fast as pageable ones: -60 % of their time, where -53 and -66 % were measured.
    found = finding("IN009", copying(0.3, rate=rate))
    assert found.saving.expected == pytest.approx(0.3 * (1 - rate / pinned))
    assert found.saving.high == pytest.approx(0.3)


def test_how_fast_pinned_copies_are_taken_to_be_can_be_set():
    assert finding("IN009", copying(0.3), pinned_ratio=0.2).saving.expected == pytest.approx(
        0.3 * (1 - 3e9 / 0.2 / LINK)
    )
    assert finding("IN009", copying(0.3), most_times_faster=2.0).saving.expected == pytest.approx(0.15)


def test_a_recorded_rate_of_pinned_copies_goes_before_that_of_the_link():
    def recorded(direction, rate):
        return HostCopy(
            direction=direction, memory="pinned", per_step=1.0, bytes_per_step=1e8, time_ns=1e7, bytes_per_s=rate
        )

    copies = (recorded("to host", 4e9), recorded("to device", 20e9))
    found = finding("IN009", replace(copying(0.3), host_copies=copies))
    assert found.saving.expected == pytest.approx(0.3 * (1 - 3 / 20))


def test_only_what_the_pageable_copies_expose_is_saved_by_pinning():
    # Half of the step is batch copies, of which a single slow one of 2 ms is pageable.
    known = facts({"input.h2d": 0.5}, spec=A100)
    one = CopyFacts(per_step=1.0, bytes_per_step=70e3, time_ns=0.02 * STEP_NS, exposed_ns=0.0199 * STEP_NS)
    assert ended("IN009", replace(known, copies=one)) is Passed
    found = finding("IN009", replace(known, copies=replace(one, bytes_per_step=7e6, exposed_ns=0.1 * STEP_NS)))
    assert found.title == "Pageable copies cost 10.0 ms in every step"
    assert found.saving.high == pytest.approx(0.1)


# ME001


def test_allocation_below_the_general_floor_is_not_worth_a_finding():
    assert ended("ME001", allocating(0.02)) is Fired
    assert ended("ME001", allocating(0.02 - JUST)) is Passed
    assert ended("ME001", allocating(0.1), smallest_share=0.1) is Fired
    assert ended("ME001", allocating(0.1 - JUST), smallest_share=0.1) is Passed


def test_allocation_without_calls_in_the_window_passes():
    assert ended("ME001", allocating(0.1, calls=0.0)) is Passed


def test_a_cold_window_allocates_once():
    assert ended("ME001", replace(allocating(0.3), cold=ColdFacts(share=0.5, calls=()))) is NotApplicable


# OV001


@pytest.mark.parametrize(("between", "expected"), [(0.0, 0.15), (0.3, 0.24), (1.0, 0.45)])
def test_short_gaps_between_operators_are_the_price_of_issuing_them(between, expected):
    shares = {"over.dispatch": 0.1, "over.launch": 0.05, "over.python": 0.3}
    found = finding("OV001", facts(shares, device=replace(DEVICE, between_ratio=between)))
    assert (found.detail, found.saving.expected) == ("launch", pytest.approx(expected))
    # The title states what is saved, not all the host's work.
    assert f"idles {expected * 100:.1f} ms" in found.title
    assert found.saving.high == pytest.approx(expected)


def test_what_holds_the_host_in_an_operator_is_not_issuing():
    held = facts({"over.dispatch": 0.4, "over.launch": 0.1}, device=replace(DEVICE, held_ratio=0.75))
    assert finding("OV001", held).saving.expected == pytest.approx(0.2)
    assert ended("OV001", facts({"over.dispatch": 0.4}, device=replace(DEVICE, held_ratio=1.0))) is Passed


def test_longer_stretches_of_python_are_not_issuing():
    assert ended("OV001", facts({"over.python": 0.4})) is Passed
    assert ended("OV001", on_host({"over.python": 0.4})) is Passed


def test_without_an_unprofiled_step_time_the_low_end_is_of_a_host_twice_as_fast():
    known = issuing(0.3)
    unknown = issuing(0.3, trust=Trust(mode="gpu", inflation_ratio=None))
    halved, whole = finding("OV001", unknown), finding("OV001", known)
    assert halved.saving.low == pytest.approx(0.15 / (1 - 0.15))
    assert (halved.confidence, whole.confidence) == ("medium", "high")
    kept = finding("OV001", unknown, unmeasured_inflation_ratio=1.0)
    assert kept.saving.low == pytest.approx(whole.saving.low)


def test_without_a_device_the_low_end_of_fewer_operators_is_wider():
    known = on_host({"over.dispatch": 0.58})
    found, whole = finding("OV001", known).saving, finding("OV001", known, host_low_ratio=1.0).saving
    assert (found.expected, found.high) == (pytest.approx(0.87 * 0.58), pytest.approx(0.58))
    assert found.low == pytest.approx(whole.low / 2)


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.12, 0.024), (0.24, 0.048), (0.375, 0.535 * 0.375), (0.51, 0.87 * 0.51), (0.9, 0.87 * 0.9)],
)
def test_of_a_hosts_operators_a_fifth_is_expected_where_they_are_few_and_most_where_they_are_many(share, expected):
    found = finding("OV001", on_host({"over.dispatch": share}))
    assert (found.saving.expected, found.saving.high) == (pytest.approx(expected), pytest.approx(share))
    assert (found.saving.low > 0.0) is (share > 0.375)
    assert found.confidence == "medium"
    assert f"{share * 100:.1f} ms" in found.title
    assert found.evidence[0].value == pytest.approx(share)
    on_device = finding("OV001", issuing(share))
    assert (on_device.saving.expected, on_device.confidence) == (pytest.approx(share), "high")


def test_a_hosts_saving_moves_with_the_share_of_its_operators_and_never_jumps():
    """A thousandth of the step more in operators moves no end by more than some thousandths, calibrated or not."""
    known = [on_host({"over.dispatch": share / 1_000}) for share in range(100, 701)]
    told = [finding("OV001", each).saving for each in known]
    narrowed = []
    for each in known:
        (outcome,) = (entry for entry in run_rules(each, RULES, select=("OV001",)) if entry.rule == "OV001")
        narrowed.append(calibrated(each, [outcome])[0].findings[0].saving)
    for savings in (told, narrowed):
        ends = [(each.low, each.expected, each.high) for each in savings]
        for before, after in pairwise(ends):
            assert all(-1e-9 <= later - earlier <= 0.005 for earlier, later in zip(before, after, strict=True))


@pytest.mark.parametrize(("error", "speaks"), [(0.0119, True), (0.0121, False)])
def test_of_a_hosts_operators_what_is_expected_has_to_be_beyond_the_noise(error, speaks):
    known = on_host({"over.dispatch": 0.12}, step_error_ns=error * STEP_NS)
    assert (ended("OV001", known) is Fired) is speaks
    if not speaks:
        assert check("OV001", known).reason.endswith("would save 2.4 %, and the steps differ too much to be sure")


@pytest.mark.parametrize(("late", "held_up"), [(0.0, False), (0.624, False), (0.626, True), (1.0, True)])
def test_launches_that_take_longer_than_any_launch_are_held_up_by_something_else(late, held_up):
    known = facts({"over.launch": 0.4, "over.dispatch": 0.1}, device=replace(DEVICE, late_launch_ratio=late))
    found = finding("OV001", known)
    assert (found.detail, found.saving.expected) == ("contention" if held_up else "launch", pytest.approx(0.5))
    assert found.title.startswith("Kernels wait 50.0 ms") == held_up
    assert ("other processes" in found.fix.text) == held_up
    assert (found.fix.code == "") == held_up


def test_longer_steps_that_compute_more_are_not_slow():
    assert ended("RU004", uneven(part="input.wait")) is Fired
    assert ended("RU004", uneven(part="compute.math")) is Passed


def test_a_trace_that_lacks_the_devices_events_advises_nothing():
    known = replace(issuing(0.4), device_events_missing=True, kernels_unseen="unknown")
    (outcome,) = [outcome for outcome in run_rules(known, RULES) if outcome.rule == "OV001"]
    assert (outcome.status, outcome.findings) == ("missing_data", ())
    assert "holds none of its events" in outcome.reason


def test_what_moves_into_workers_is_what_makes_the_batch_and_not_what_it_calls():
    frames = ("gpt.py(14): get_batch", "numpy/_core/fromnumeric.py(939): sort", "<built-in method sort>")
    known = replace(alone(0.5), loader=None)
    text = finding("IN001", replace(known, input=replace(known.input, frames=frames, frames_ratio=0.9))).fix.text
    assert "get_batch (gpt.py:14) in the workers of a DataLoader" in text
    other = ("gpt.py(14): prepare", *frames[1:])
    text = finding("IN001", replace(known, input=replace(known.input, frames=other, frames_ratio=0.9))).fix.text
    assert "DataLoader" not in text


def test_a_batch_function_that_computes_is_priced_in_workers():
    frames = ("gpt.py(14): get_batch", "<built-in method sort>")
    made = replace(alone(0.3).input, single_process=None, cpu_ratio=None, frames=frames, frames_ratio=0.9)
    found = finding("IN001", replace(alone(0.3), loader=None, input=made, usable_cores=4.0))
    assert found.saving.expected == pytest.approx(0.3 - HANDOVER_NS / STEP_NS)
    assert "get_batch (gpt.py:14) into the __iter__ of an IterableDataset" in found.fix.text
    assert "own part or random generator, by get_worker_info()" in found.fix.text  # torch seeds only the global ones
    assert "if they need nothing that training changes" in found.fix.text
    assert "num_workers=1" in found.fix.code
    unnamed = replace(made, frames=(), frames_ratio=None)
    found = finding("IN001", replace(alone(0.3), loader=None, input=unnamed, usable_cores=4.0))
    assert "Put what makes them into the __iter__ of an IterableDataset" in found.fix.text
    assert (
        "The recording does not say"
        in finding("IN001", replace(alone(0.3), loader=None, input=made, usable_cores=None)).fix.text
    )
    # On a core of its own it would only move: what is left is to make it cheaper.
    alike = finding("IN001", replace(alone(0.3), loader=None, input=made, usable_cores=1.0))
    assert "DataLoader" not in alike.fix.text
    blocked = replace(facts({"input.fetch": 0.3}), loader=None, input=made, usable_cores=4.0)
    assert finding("IN001", blocked).saving.expected == pytest.approx(0.15)


@pytest.mark.parametrize(
    ("length", "streams", "workers", "told"),
    [
        (None, None, 0, True),
        (None, None, 1, True),  # a single one gives all of it, as it should
        (None, None, 2, False),
        (500, None, 0, False),
        (500, None, 1, False),
        (500, True, 0, True),
        (500, True, 1, True),
        (None, False, 0, False),
    ],
)
def test_where_workers_become_several_what_may_be_an_iterable_dataset_gives_each_a_part(length, streams, workers, told):
    loader = Loader(kind="DataLoader", num_workers=workers, dataset_len=length, is_iterable=streams)
    text = finding("IN001" if workers else "IN002", alone(0.5, loader=loader)).fix.text
    assert ("get_worker_info()" in text) is told


def test_of_a_loader_whose_workers_are_not_known_what_makes_the_batch_is_named():
    frames = ("gpt.py(14): get_batch", "<built-in method sort>")
    made = replace(alone(0.3).input, single_process=None, frames=frames, frames_ratio=0.9)
    text = finding("IN001", alone(0.3, loader=Loader(kind="iterator", num_workers=None), input=made)).fix.text
    assert "get_batch (gpt.py:14) in the workers of a DataLoader" in text
    assert "in the workers" not in finding("IN002", alone(0.3, input=made)).fix.text
    # On a single core it is known that workers win nothing.
    computing = replace(made, cpu_ratio=1.0)
    cheaper = finding("IN001", alone(0.3, input=computing, usable_cores=1.0)).fix.text
    assert cheaper.startswith("Prepare batches with less work")
    assert "in the workers" not in cheaper


def test_the_function_that_holds_most_of_the_wait_is_named_in_the_title():
    frames = ("train.py(12): get_batch", "<built-in method sleep>")
    named = replace(alone(0.5), input=replace(alone(0.5).input, frames=frames, frames_ratio=0.9))
    assert finding("IN002", named).title.endswith(", most of it in get_batch (train.py:12)")
    assert "most of it in get_batch" in finding("IN001", named).title
    little = replace(named, input=replace(named.input, frames_ratio=0.4))
    assert "get_batch" not in finding("IN002", little).title


# OV002


@pytest.mark.parametrize(("busy", "blocked", "expected"), [(0.5, 0.5, 0.2), (0.95, 0.5, 0.05), (0.5, 0.1, 0.1)])
def test_removing_syncs_saves_no_more_than_the_idle_time_or_the_blocked_time(busy, blocked, expected):
    saving = finding("OV002", syncing(8.0, busy=busy, blocked=blocked)).saving
    assert (saving.expected, saving.most) == (pytest.approx(expected), pytest.approx(min(1 - busy, blocked)))


def test_syncs_that_leave_the_device_busy_are_no_finding():
    assert ended("OV002", syncing(100.0, 0.01)) is Passed


def test_a_single_sync_that_drains_much_of_the_step_is_a_finding():
    found = finding("OV002", syncing(1.0, 0.45, busy=0.55, blocked=0.6))
    assert found.saving.expected == pytest.approx(0.45)
    assert found.title == "A host sync drains the queue for 45.0 ms of every step"
    assert "idle time" in found.confirm
    often = finding("OV002", syncing(8.0, 0.45, busy=0.55))
    assert often.title == "Host syncs drain the queue 8 times in every step"
    assert "fall to 2 or fewer" in often.confirm


@pytest.mark.parametrize("per_step", [1.0, 4.0])
def test_a_copy_to_the_host_that_stops_much_of_the_step_is_a_finding_though_the_device_is_busy(per_step):
    found = finding("OV002", syncing(per_step, 0.21, copying=0.21, busy=1.0, blocked=0.25))
    assert found.saving.expected == pytest.approx(0.21)
    assert found.title == "Copies to the host stop the device for 21.0 ms of every step"
    assert found.fix.text.startswith("Copy to the host every 50 steps instead of in each")
    assert "copies to the host" in found.confirm
    assert [row.value for row in found.evidence[1:]] == pytest.approx([0.0, 0.25, 0.21])


def test_a_copy_to_the_host_that_the_host_does_not_wait_for_is_not_priced():
    assert ended("OV002", syncing(1.0, 0.3, copying=0.3, busy=1.0, awaited=0.0)) is Passed
    found = finding("OV002", syncing(1.0, 0.4, copying=0.3, busy=0.9, awaited=0.1))
    assert found.saving.high == pytest.approx(0.13)
    assert found.title == "A host sync drains the queue for 13.0 ms of every step"


def test_copies_are_told_without_the_idle_time_after_them():
    found = finding("OV002", syncing(1.0, 0.20, copying=0.11, busy=0.91))
    assert found.title == "Copies to the host stop the device for 11.0 ms of every step"


def test_a_copy_to_the_host_that_does_not_hold_it_is_no_sync():
    assert ended("OV002", syncing(1.0, 0.21, copying=0.21, busy=1.0, blocked=0.01)) is Passed


# ME003


def test_a_risk_states_no_saving_and_no_bound():
    for found in (finding("ME003", FIRES["ME003"]), finding("ME004", FIRES["ME004"])):
        assert (found.bound, found.saving) == (None, None)
        assert found.fix is not None


def test_sampled_use_of_a_device_is_an_observation_because_cache_counts():
    found = finding("ME003", facts(memory=Memory(peak_device_used_bytes=95 * GB, capacity_bytes=100 * GB)))
    assert (found.confidence, found.fix) == ("low", None)
    assert "cached" in found.why
    assert found.title == "Device memory is 95 % full: 4.66 GiB are left"


def test_more_than_the_capacity_is_told_as_a_contradiction_and_never_as_negative_room():
    found = finding("ME003", full(1.08))
    assert found.title == "Device memory is full: 101 GiB are taken of 93.1 GiB"
    assert "one of the two numbers is wrong" in found.why
    assert found.confidence == "low"
    assert "0 B are left" in finding("ME003", full(1.0)).title


def test_memory_of_the_host_does_not_fill_the_device():
    known = full(0.95, place="host")
    assert ended("ME003", known) is MissingData


# ME004


def test_a_leak_is_told_with_its_rate_and_the_time_to_a_full_memory():
    found = finding("ME004", growing(GB))
    assert found.title == (
        "Allocated memory grows by 9.54 MiB in every step: the device is full in about 5,000 steps, 8.3 min"
    )
    slope, steps, room, left, time = found.evidence
    assert (slope.low, slope.high, slope.n, slope.steps) == (0.9 * GB / 100, 1.1 * GB / 100, 101, (1, 101))
    assert (steps.value, room.value, left.value) == (101, 50 * GB, 5000)
    assert time.value == pytest.approx(500e9, rel=0.05)


def test_growth_over_fewer_than_fifty_steps_is_an_observation_because_batches_may_get_longer():
    assert finding("ME004", growing(GB, over=50)).fix is not None
    found = finding("ME004", growing(GB, over=49))
    assert (found.fix, found.confidence) == (None, "low")
    assert "In 49 steps, batches that get longer look the same: record 50." in found.why
    assert found.title == "Allocated memory grew by 19.9 MiB a step over 49 steps"


def test_few_samples_of_many_steps_are_a_leak_whose_end_is_not_told():
    found = finding("ME004", growing(GB, of="process", over=101, n=12))
    assert (found.fix is None, found.confidence) == (False, "medium")
    assert found.title == "The process grows by 9.54 MiB in every step"


@pytest.mark.parametrize(
    ("of", "epochs", "confidence"), [("process", 1, "low"), ("process", 2, "medium"), ("device", 1, "medium")]
)
def test_memory_of_the_host_that_grows_in_the_first_epoch_may_be_a_cache(of, epochs, confidence):
    loading = LoadingFacts(epochs=EpochFacts(count=epochs))
    found = finding("ME004", replace(growing(GB, of=of), loading=loading))
    assert (found.confidence, "A cache that fills during the first epoch" in found.why) == (
        confidence,
        confidence == "low",
    )


def page_copies(copied, at_once, *, shared=2 * GB, **changes):
    """A worker that copied so much of what it shared within 100 steps."""
    pages = CopiedPages(
        counts=5,
        private_bytes=copied + 50_000_000,
        shared_bytes=shared,
        copied_bytes=copied,
        at_once_bytes=at_once,
        first_step=1,
        last_step=101,
    )
    return facts(memory_use=MemoryUse(copied=pages), **changes)


def test_workers_that_copy_what_they_share_are_told_with_what_they_can_still_copy():
    loader = Loader(kind="DataLoader", num_workers=4, batch_size=10, dataset_len=3_000)
    found = finding("ME004", page_copies(250_000_000, 100_000_000, loader=loader))
    assert found.title == "Each worker copied 238 MiB of memory that it shared with the training process"
    assert [row.value for row in found.evidence] == [250_000_000, 300_000_000, 2 * GB]
    assert "The workers can still copy 7.45 GiB." in found.why
    assert "array" in found.fix.text
    assert "still" not in finding("ME004", page_copies(250_000_000, 100_000_000, shared=0)).why


def test_copies_between_two_counts_are_told_where_they_are_more_than_a_collection_touches():
    assert finding("ME004", page_copies(250_000_000, 250_000_000)).fix is not None


@pytest.mark.parametrize(
    ("copied", "at_once"), [(49_999_999, 0), (150_000_000, 101_000_000), (169_000_000, 169_000_000)]
)
def test_a_collection_that_touches_all_objects_once_is_no_copying_without_end(copied, at_once):
    assert ended("ME004", page_copies(copied, at_once)) is MissingData


def test_the_operator_that_asked_for_most_of_what_is_alive_is_named():
    alive = (
        AliveAtPeak(op=None, module=None, count=9, bytes=8 * MS),
        AliveAtPeak(op="aten::zeros", module=None, count=1, bytes=4 << 20),
    )
    assert "asked for by aten::zeros: 4.00 MiB in 1 block." in finding("ME004", growing(GB, alive=alive)).why
    assert "asked for" not in finding("ME004", growing(GB, of="process", alive=alive)).why


@pytest.mark.parametrize(
    ("of", "place", "text"),
    [
        ("process", "device", "The process grows by 9.54 MiB in every step: the host is full"),
        ("device", "device", "The device's memory grows"),
        ("allocated", "host", "in every step: the host is full"),
    ],
)
def test_it_is_told_which_memory_grows(of, place, text):
    assert text in finding("ME004", growing(GB, of=of, place=place)).title


def test_where_the_allocators_growth_is_known_that_of_the_device_is_not_told_again():
    rows = [growing(GB, of=of).memory.growth[0] for of in ("allocated", "device", "process")]
    found = check("ME004", facts(memory=Memory(growth=tuple(rows)))).findings
    assert [finding.evidence[0].origin for finding in found] == ["[memory] instants", "/proc/self/statm"]


# RU003


def test_a_short_cold_window_is_told_twice():
    known = facts(steady=3, cold=ColdFacts(share=0.5, calls=(("cudaFree", 4),)))
    assert len(check("RU003", known).findings) == 2


def test_a_guard_states_no_saving_and_no_bound():
    for found in check("RU003", facts(steady=1)).findings:
        assert (found.bound, found.saving, found.fix) == (None, None, None)
        assert found.title == "Only 1 of 2 recorded steps is steady"
        assert found.why.startswith("1 of 2 recorded steps could be judged (1 warm-up). ")
    (whole,) = check("RU003", facts(steps=steps(1, count=1, found_by=WHOLE_TRACE))).findings
    assert whole.why.startswith("Set-up and all steps are judged as one. ")


# RU004


def test_the_part_that_grew_is_told_and_prices_the_slow_steps():
    found = finding("RU004", uneven(share=0.1))
    assert found.title == "Step 57 is 1.90 s longer than the others"
    assert "90 % of that is in one part: input wait." in found.why
    bound = 1 - 1 / 1.1
    assert (found.saving.expected, found.saving.high) == (pytest.approx(0.9 * bound), pytest.approx(bound))
    assert found.bound is None


def test_slow_steps_save_no_more_than_they_take_beyond_the_others():
    found = finding("RU004", uneven(mean=1.3, share=0.034))  # the mean is raised by something else as well
    assert (found.saving.expected, found.saving.high) == (pytest.approx(0.9 * 0.034), pytest.approx(0.034))
    beside_a_stall = finding("RU004", uneven(mean=1.3, share=0.2, stalls=stalling(0.09).stalls))
    assert beside_a_stall.saving.high == pytest.approx(0.11)
    assert ended("RU004", uneven(mean=1.3, share=0.019)) is Passed


def test_slow_steps_whose_part_is_not_known_have_no_saving():
    found = finding("RU004", uneven(part=None))
    assert found.saving is None
    assert "No recorded part of the step holds most of that." in found.why


def test_slow_steps_that_are_stalls_with_a_finding_of_their_own_are_not_told_twice():
    known = uneven(share=0.1, stalls=stalling(0.09).stalls)
    assert ended("RU004", known) is Passed
    assert ended("RU004", uneven(share=0.2, stalls=stalling(0.09).stalls)) is Fired


def test_slow_steps_that_recur_are_told_with_their_period():
    known = uneven()
    slow = revise(known.steps.slow, count=20, period=10, last=199)
    every = replace(known, steps=revise(known.steps, slow=slow))
    assert finding("RU004", every).title == "20 steps are 1.90 s longer than the others, every 10 steps"


def test_each_doubt_lowers_the_confidence():
    def sure(steady, *doubts):
        told = tuple(Doubt("noise", words) for words in doubts)
        known = facts({"input.wait": 0.4}, steady=steady, doubts=told, loader=Loader(kind="x", num_workers=0))
        return finding("IN001", known).confidence

    assert [sure(20), sure(20, "a"), sure(20, "a", "b"), sure(20, "a", "b", "c")] == ["high", "medium", "medium", "low"]
    assert [sure(7), sure(7, "a"), sure(7, "a", "b")] == ["medium", "medium", "low"]
    assert sure(20, "Two sentences. Of one weakness.") == "medium"


def test_all_rules_pass_or_abstain_on_a_run_that_only_computes():
    statuses = {outcome.rule: outcome.status for outcome in run_rules(facts(), RULES)}
    assert "fired" not in statuses.values()
    assert "error" not in statuses.values()


@pytest.mark.parametrize("known", [facts(steps=NO_STEPS, step_ns=None, parts=()), timers_only(), on_host()])
def test_no_rule_breaks_on_facts_that_lack_something(known):
    assert {outcome.status for outcome in run_rules(known, RULES)} <= {"passed", "missing_data", "not_applicable"}
