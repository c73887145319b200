"""Rules about memory: retries, fragments, recomputation, offloading, zeros, rounding, and too large a device."""

import pytest

from profilerkit.analysis.device.device_facts import AllocatorFacts, ColdFacts
from profilerkit.analysis.memory.history import LogFacts
from profilerkit.analysis.memory.use import AllocatorUse, MemoryUse, Offload, PageFaults, ZeroedGradients
from profilerkit.analysis.surroundings import Surroundings
from profilerkit.diagnosis.verdict import diagnose
from profilerkit.hardware import lookup
from profilerkit.model import revise
from profilerkit.model.memory import FailedRequest, LiveAtPeak, LiveBytes, Memory, MemorySnapshot, OutOfMemory
from profilerkit.model.run import Loader, Series
from profilerkit.model.step import WHOLE_TRACE
from profilerkit.rules import RULES
from profilerkit.rules.api import Fired, MissingData, Passed
from profilerkit.rules.runner import run_rules
from tests.recipes import facts, replace, steps
from tests.rules import contract
from tests.rules.test_rules import JUST, allocating, check, communicating, ended, finding, on_host, timers_only

GB = 10**9
A100 = lookup("NVIDIA A100-SXM4-80GB")
LINK = 0.85 * A100.pcie_gb_per_s * 1e9


def series(name, mean, maximum=None):
    return Series(name=name, unit="bytes", n=60, mean=mean, p10=mean, p90=mean, maximum=maximum or mean)


def fragmented(split=0.3, *, reserved=50 * GB, settings=None, samples=60, **memory):
    """A device of 100 GB of which ``split`` of the reserved memory is in free pieces."""
    seen = AllocatorUse(samples=samples, allocated_bytes=30 * GB, reserved_bytes=reserved, split_ratio=split)
    used = MemoryUse(allocator=seen, allocator_settings=settings)
    return facts(memory=Memory(capacity_bytes=100 * GB, **memory), memory_use=used)


def unmarked(frees):
    """A recording without steps in which the allocator called the driver 8 times, ``frees`` of them to give back."""
    calls, memory = AllocatorFacts(calls_per_step=8.0), Memory(allocator_frees_per_step=frees)
    return facts({"mem.alloc": 0.1}, allocator=calls, memory=memory, steps=steps(1, count=1, found_by=WHOLE_TRACE))


def idle_at_the_peak(ratio, *, reserved=50 * GB):
    return facts(memory=Memory(capacity_bytes=100 * GB, peak_reserved_bytes=reserved, fragmentation_ratio=ratio))


def failed(requested=2 * GB, *, allocated=70 * GB, reserved=75 * GB, limit="device"):
    oom = OutOfMemory(
        device="cuda:0",
        message="CUDA out of memory",
        requested_bytes=requested,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        limit=limit,
    )
    return facts(memory_use=MemoryUse(oom=oom))


def recomputing(share=0.25, *, peak=30 * GB, kept=None, **changes):
    """A device of 100 GB of which ``peak`` is needed, with activations of ``kept`` bytes recomputed."""
    memory = Memory(capacity_bytes=100 * GB, peak_allocated_bytes=peak)
    known = {"memory": memory, "memory_use": MemoryUse(recomputed_bytes=kept), **changes}
    return facts({"mem.recompute": share}, **known)


FULL_HOST = Series(name="host.cpu", unit="ratio", n=60, mean=0.95, p10=0.9, p90=1.0, maximum=1.0)


def oversized(used=0.3, *, peak=10 * GB, samples=60, shares=None, **changes):
    """A device that waits for the workers of a host without a core to spare, unless ``shares`` say for what."""
    around = Surroundings(utilization_p95=used, utilization_samples=samples)
    memory = Memory(capacity_bytes=100 * GB, peak_device_used_bytes=peak)
    known = {"samples": (FULL_HOST,), "loader": Loader(kind="DataLoader", num_workers=4)}
    shares = {"input.wait": 1.0 - used} if shares is None else shares
    return facts(shares, surroundings=around, memory=memory, **{**known, **changes})


def zeroing(share=0.04, *, added=0.03, spared=1.0, per_step=24.0, **changes):
    zeroed = ZeroedGradients(per_step=per_step, share=share, added_share=added, spared_ratio=spared)
    return facts({"compute.membw": 0.2}, memory_use=MemoryUse(zeroed=zeroed), **changes)


def offloading(share=0.2, *, seconds=0.01, pageable=0.0, pinned_ns=0.0, spec=A100, **changes):
    """Offload copies that hold ``share`` of the step; at 85 % of the link they take ``seconds`` each way."""
    to_device, to_host = seconds * LINK, seconds * LINK / 2
    offload = Offload(to_device_bytes=to_device, to_host_bytes=to_host, pageable_ratio=pageable, pinned_ns=pinned_ns)
    return facts({"mem.offload": share}, memory_use=MemoryUse(offload=offload), spec=spec, **changes)


def rounding(ratio=0.2, *, wasted=GB, settings=None):
    seen = AllocatorUse(samples=60, rounding_bytes=wasted, rounding_ratio=ratio)
    return facts(memory_use=MemoryUse(allocator=seen, allocator_settings=settings))


def retrying(times=3, *, settings="", **changes):
    seen = AllocatorUse(samples=60, retries=times)
    return facts(memory_use=MemoryUse(allocator=seen, allocator_settings=settings), **changes)


def faulting(per_step=20_000.0, share=0.3, *, each=2_000.0, samples=10, shares=None):
    """A host whose training thread gets pages fresh from the system."""
    faults = PageFaults(samples=samples, per_step=per_step, share=share, each_ns=each)
    return on_host(shares or {"compute.other": 0.5}, memory_use=MemoryUse(faults=faults))


def holding(*, activations=5 * GB, optimizer=2 * GB, loss=0, asked=0, free=0, of_loss=False, peak=10 * GB):
    """A snapshot with a peak of 10 GB, in which a request failed where anything was ``asked`` for."""
    row = LiveAtPeak(line="/job/model.py:21 forward", count=4, bytes=activations, kind="activations")
    kinds = (("activations", activations), ("optimizer state", optimizer))
    failure = FailedRequest(
        requested_bytes=asked, free_bytes=free, in_use_bytes=peak, reserved_bytes=peak, is_of_loss=of_loss
    )  # fmt: skip
    one = MemorySnapshot(
        origin="mem.pickle", device=0, in_use_bytes=peak, reserved_bytes=peak, idle_bytes=0, split_bytes=0, events=9,
        start_in_use_bytes=0, peak_bytes=peak, reserved_at_peak_bytes=peak, peak_reserved_bytes=peak, live=(row,),
        kinds=tuple(LiveBytes(kind=kind, bytes=size) for kind, size in kinds), failed=(failure,) if asked else (),
        loss=LiveAtPeak(line="/job/model.py:88 forward", count=1, bytes=loss, kind="other") if loss else None,
    )  # fmt: skip
    return replace(facts(), logs=LogFacts(alone=True, own=(one,), snapshots=(one,)))


def retaken(count):
    """The history of a snapshot in which memory was given back, and taken anew ``count`` times."""
    known = holding()
    one = revise(known.logs.own[0], retaken=count)
    return replace(known, logs=LogFacts(alone=True, own=(one,), snapshots=(one,)))


NO_MEMORY = facts()
FIRES = [
    ("ME001", retrying()),
    ("ME001", faulting()),
    ("ME002", fragmented()),
    ("ME002", idle_at_the_peak(0.6)),
    ("ME002", failed()),
    ("ME005", recomputing()),
    ("ME005", recomputing(kept=20 * GB)),
    ("ME006", oversized()),
    ("ME007", zeroing()),
    ("ME008", offloading()),
    ("ME009", rounding()),
    ("ME010", holding()),
]
PASSES = [
    ("ME001", retrying(0)),
    ("ME001", faulting(100.0)),
    ("ME002", fragmented(0.1)),
    ("ME005", recomputing(0.05)),
    ("ME005", recomputing(kept=2_000 * GB)),
    ("ME006", oversized(0.8)),
    ("ME007", zeroing(0.0, added=0.0, per_step=0.0)),
    ("ME008", offloading(0.02)),
    ("ME009", rounding(0.01)),
    ("ME010", holding(activations=GB)),
]
MISSING = [
    ("ME001", replace(timers_only(), memory_use=MemoryUse())),
    ("ME002", NO_MEMORY),
    ("ME010", NO_MEMORY),
    ("ME005", timers_only()),
    ("ME005", facts({"mem.recompute": 0.3})),
    ("ME006", NO_MEMORY),
    ("ME006", replace(oversized(), memory=Memory())),
    ("ME007", timers_only()),
    ("ME008", timers_only()),
    ("ME008", offloading(seconds=0.0)),
    ("ME009", NO_MEMORY),
]
NOT_APPLICABLE = [
    ("ME001", on_host()),
    ("ME002", on_host()),
    ("ME010", on_host()),
    ("ME005", facts()),
    ("ME006", on_host()),
    ("ME007", facts()),
    ("ME008", facts()),
    ("ME009", on_host()),
]
#: Just fires, just does not.
THRESHOLDS = {
    ("ME001", "smallest_given_back"): (unmarked(2.0), unmarked(2.0 - JUST)),
    ("ME001", "fewest_faults"): (faulting(4_096.0), faulting(4_095.0)),
    ("ME001", "fewest_retaken"): (retaken(20), retaken(19)),
    ("ME001", "longest_fault_ns"): (faulting(each=10_000.0), faulting(each=10_001.0)),
    ("ME010", "loss_ratio"): (holding(activations=0, loss=2 * GB), holding(activations=0, loss=2 * GB - 1)),
    ("ME010", "activation_ratio"): (holding(activations=5 * GB // 2), holding(activations=5 * GB // 2 - 1)),
    ("ME002", "split_ratio"): (fragmented(0.20 + JUST), fragmented(0.20)),
    ("ME002", "idle_ratio"): (idle_at_the_peak(0.50), idle_at_the_peak(0.50 - JUST)),
    ("ME002", "reserved_ratio"): (fragmented(reserved=30 * GB), fragmented(reserved=30 * GB - 1)),
    ("ME005", "smallest_share"): (recomputing(0.10), recomputing(0.10 - JUST)),
    ("ME005", "roomy_ratio"): (recomputing(peak=70 * GB - 1), recomputing(peak=70 * GB)),
    ("ME005", "full_ratio"): (recomputing(0.2, kept=600 * GB), recomputing(0.2, kept=601 * GB)),
    ("ME005", "assumed_ratio"): (recomputing(0.10), recomputing(0.2, kept=601 * GB)),
    ("ME006", "low_utilization_ratio"): (oversized(0.50 - JUST), oversized(0.50)),
    ("ME006", "small_peak_ratio"): (oversized(peak=40 * GB - 1), oversized(peak=40 * GB)),
    ("ME006", "mendable_share"): (
        replace(oversized(shares={"input.wait": 0.10 - JUST, "idle.unknown": 0.8}), samples=()),
        replace(oversized(shares={"input.wait": 0.10, "idle.unknown": 0.8}), samples=()),
    ),
    ("ME006", "longest_ratio"): (
        oversized(shares={"idle.unknown": 0.90 + JUST}),
        oversized(shares={"idle.unknown": 0.90 - JUST}),
    ),
    ("ME008", "smallest_share"): (offloading(0.03, seconds=0.001), offloading(0.03 - JUST, seconds=0.001)),
    ("ME009", "largest_ratio"): (rounding(0.10 + JUST), rounding(0.10)),
    ("ME009", "smallest_bytes"): (rounding(wasted=100_000_000), rounding(wasted=99_999_999)),
}
TRIED_BELOW = {
    ("ME001", "smallest_share"),
    ("ME001", "fewest_samples"),
    ("ME006", "filled_ratio"),
    ("ME006", "fewest_samples"),
    ("ME010", "optimizer_ratio"),
    ("ME008", "pinned_ratio"),
    ("ME008", "assumed_link_gb_per_s"),
    ("ME008", "roomy_ratio"),
}


@pytest.mark.parametrize(("code", "known"), FIRES)
def test_the_rule_fires(code, known):
    contract.fires(code, known)


@pytest.mark.parametrize(("code", "known"), PASSES)
def test_the_rule_passes_with_the_number_that_says_so(code, known):
    contract.passes(code, known)


@pytest.mark.parametrize(("code", "known"), MISSING)
def test_the_rule_abstains_without_its_signal_and_says_how_to_record_it(code, known):
    contract.abstains(code, known)


@pytest.mark.parametrize(("code", "known"), NOT_APPLICABLE)
def test_the_rule_is_not_about_runs_without_its_subject(code, known):
    contract.is_not_applicable(code, known)


@pytest.mark.parametrize(("code", "known"), FIRES)
def test_no_rule_speaks_within_the_noise_of_the_step_time(code, known):
    contract.keeps_silent_within_the_noise(code, known)


@pytest.mark.parametrize(("code", "option"), THRESHOLDS)
def test_a_threshold_lies_where_it_says(code, option):
    above, below = THRESHOLDS[code, option]
    assert ended(code, above) is Fired
    assert ended(code, below) is Passed


def test_every_threshold_is_tried_on_both_sides():
    tried = set(THRESHOLDS) | TRIED_BELOW
    assert tried == contract.options({code for code, _ in FIRES})


# ME001


def test_a_retry_is_told_without_a_trace_and_without_a_saving():
    found = finding("ME001", replace(timers_only(), memory_use=retrying(1).memory_use))
    assert found.title == "The allocator gave back its cache once to serve a request"
    assert (found.bound, found.saving, found.evidence[0].source) == (None, None, "measured")


def test_a_retry_that_only_the_order_of_calls_shows_is_derived():
    known = facts(memory=Memory(allocator_retries=2))
    assert finding("ME001", known).evidence[0].source == "derived"


def test_retries_are_evidence_beside_the_time_of_the_calls():
    known = replace(allocating(0.1), memory_use=retrying(4).memory_use)
    assert [entry.value for entry in finding("ME001", known).evidence] == [3.0, pytest.approx(0.1), 4]


def test_a_call_that_gives_memory_back_also_leaves_the_queue_empty():
    shares = {"mem.alloc": 0.1, "over.dispatch": 0.05, "over.launch": 0.02, "over.python": 0.1}
    calls = AllocatorFacts(calls_per_step=2.0)
    asking = finding("ME001", facts(shares, allocator=calls, memory=Memory(allocator_frees_per_step=0.0)))
    giving = finding("ME001", facts(shares, allocator=calls, memory=Memory(allocator_frees_per_step=1.0)))
    assert (asking.saving.high, giving.saving.high) == (pytest.approx(0.1), pytest.approx(0.17))
    assert giving.saving.expected == pytest.approx(0.1)


def test_segments_that_are_expandable_are_not_made_expandable():
    for setting, said, code in (
        ("", "fixed → expandable", "PYTORCH_ALLOC_CONF=expandable_segments:True"),
        ("expandable_segments:True", "expandable already", ""),
        (
            "max_split_size_mb:128,expandable_segments:False",
            "fixed → expandable",
            "PYTORCH_ALLOC_CONF=max_split_size_mb:128,expandable_segments:True",
        ),
    ):
        fix = finding("ME001", retrying(settings=setting)).fix
        assert said in fix.text
        assert fix.code == code


def test_a_cold_window_retries_for_what_it_allocates_once():
    known = retrying(cold=ColdFacts(share=0.5, calls=()))
    contract.is_not_applicable("ME001", known)


def test_fresh_pages_on_a_host_are_saved_for_the_kernels_part():
    found = finding("ME001", faulting(share=0.3))
    assert found.title == "Fresh pages take 30.0 ms of every step"
    assert (found.saving.expected, found.saving.high) == (pytest.approx(0.3), pytest.approx(0.5))
    assert finding("ME001", faulting(share=0.6)).saving.high == pytest.approx(0.6)
    assert (found.bound, found.detail, found.confidence) == ("memory-bound", "capacity", "medium")


def test_pages_that_come_with_the_batch_are_the_loaders():
    assert finding("ME001", faulting(share=0.5, shares={"input.prep": 0.8})).saving.expected == pytest.approx(0.2)


def test_some_seconds_are_needed_to_count_pages():
    assert ended("ME001", faulting(samples=3)) is Fired
    assert ended("ME001", faulting(samples=2)) is MissingData


def test_pages_of_the_host_do_not_hold_a_device():
    known = replace(facts(), memory_use=faulting().memory_use)
    assert ended("ME001", known) is Passed


# ME002


def test_a_request_that_failed_beside_enough_idle_memory_is_told_first():
    found = finding("ME002", failed())
    assert found.title == "A request of 1.86 GiB failed beside 4.66 GiB in idle pieces"
    assert found.confidence == "high"


@pytest.mark.parametrize(
    "known", [failed(6 * GB), failed(limit="host"), failed(None), failed(reserved=None), failed(allocated=None)]
)
def test_a_request_that_fragments_do_not_explain_is_not_told_as_one(known):
    assert ended("ME002", known) is MissingData


def test_what_is_in_pieces_is_told_with_the_setting_that_joins_them():
    found = finding("ME002", fragmented(settings="expandable_segments:True"))
    assert found.title == "30 % of 46.6 GiB reserved memory is in pieces that nothing uses"
    assert "expandable already" in found.fix.text
    assert found.fix.code == "PYTORCH_ALLOC_CONF=expandable_segments:True,garbage_collection_threshold:0.8"
    assert "fixed → expandable" in finding("ME002", fragmented()).fix.text


def test_without_the_capacity_free_pieces_are_told_all_the_same():
    known = fragmented()
    assert ended("ME002", replace(known, memory=Memory())) is Fired


# ME003


def sampled(reserved, allocated):
    seen = AllocatorUse(samples=60, allocated_bytes=allocated, reserved_bytes=reserved)
    memory = Memory(capacity_bytes=100 * GB, peak_device_used_bytes=reserved + GB)
    return facts(memory=memory, memory_use=MemoryUse(allocator=seen))


def test_the_sampled_allocator_tells_cache_from_need():
    assert finding("ME003", sampled(95 * GB, 90 * GB)).confidence == "high"
    assert finding("ME003", sampled(95 * GB, 90 * GB)).fix is not None
    assert "not in use at the peak" in check("ME003", sampled(95 * GB, 50 * GB)).reason


# ME005


def test_the_saving_is_that_of_the_layers_which_fit():
    whole = finding("ME005", recomputing(0.25, kept=60 * GB))
    assert whole.saving.expected == whole.saving.high == pytest.approx(0.25)
    assert "on all layers → on no layer" in whole.fix.text
    half = finding("ME005", recomputing(0.25, kept=120 * GB))  # 90 % of 100 GB less the 30 in use
    assert half.saving.expected == pytest.approx(0.125)
    assert "on all layers → on 50 % of the layers" in half.fix.text
    assert (whole.confidence, half.confidence) == ("high", "high")


def test_where_their_size_is_not_known_half_of_the_layers_are_taken_to_fit():
    found = finding("ME005", recomputing(0.25))
    assert (found.saving.expected, found.saving.high) == (pytest.approx(0.125), pytest.approx(0.25))
    assert found.confidence == "medium"
    assert "then fewer while the peak allows" in found.fix.text


def test_the_use_of_the_whole_device_is_a_weaker_peak_than_the_allocators():
    used = Memory(capacity_bytes=100 * GB, peak_device_used_bytes=30 * GB)
    assert finding("ME005", recomputing(kept=GB, memory=used)).confidence == "medium"
    allocator = AllocatorUse(samples=60, allocated_bytes=20 * GB)
    both = recomputing(memory=used, memory_use=MemoryUse(recomputed_bytes=GB, allocator=allocator))
    assert finding("ME005", both).confidence == "high"
    assert finding("ME005", both).evidence[1].value == pytest.approx(0.2)


def test_the_verdict_on_recomputation_does_not_speak_of_allocation():
    known = recomputing(0.4, kept=10 * GB)
    found = diagnose(known, run_rules(known, RULES))
    assert (found.bound, found.detail) == ("memory-bound", "capacity")
    assert found.headline == "Recomputation takes 40.0 ms of every step, memory is 30 % full"


# ME006


def test_a_device_that_waits_for_data_is_not_called_too_large_unless_no_worker_can_be_added():
    assert "for data" in check("ME006", replace(oversized(), samples=())).reason
    assert ended("ME006", oversized()) is Fired


def test_a_device_that_waits_for_the_host_is_not_called_too_large():
    waits = oversized(0.45, shares={"over.dispatch": 0.3, "over.python": 0.25})
    assert "waits 55 % of the step for the host: fix that first" in check("ME006", waits).reason


def test_what_half_the_speed_does_to_the_step_is_predicted():
    assert "1.00 times as long. It would take 1.30 times" in finding("ME006", oversized()).why
    # Nothing fills the time of a loader that works in the same process, and what is not explained may not be filled.
    for known in (oversized(loader=Loader(kind="DataLoader", num_workers=0)), oversized(shares={"idle.unknown": 0.7})):
        assert "would take 1.30 times as long" in check("ME006", known).reason
    assert ended("ME006", replace(oversized(), trace_read=False)) is MissingData


def test_a_device_that_waits_for_what_could_overlap_is_not_called_too_large():
    known = communicating(0.3, alone=0.5)
    around, memory = oversized().surroundings, oversized().memory
    assert "could overlap" in check("ME006", replace(known, surroundings=around, memory=memory)).reason


def test_the_fix_names_the_memory_or_the_ranks_that_would_do():
    assert finding("ME006", oversized()).fix.text.startswith("Device memory 93.1 GiB → 11.6 GiB")
    assert finding("ME006", oversized(0.3, world_size=8)).fix.text.startswith("Ranks 8 → 3 with the same batch")
    by_memory = oversized(0.1, peak=39 * GB, world_size=8)
    assert finding("ME006", by_memory).fix.text.startswith("Ranks 8 → 4 ")
    assert finding("ME006", oversized(0.1, world_size=8), filled_ratio=0.2).fix.text.startswith("Ranks 8 → 4 ")


def test_half_a_minute_of_samples_is_needed():
    assert ended("ME006", oversized(samples=30)) is Fired
    assert ended("ME006", oversized(samples=29)) is MissingData


# ME007


def test_additions_to_zeros_are_saved_as_far_as_gradients_are_filled():
    found = finding("ME007", zeroing(0.04, added=0.06, spared=0.25))
    assert (found.saving.expected, found.saving.high) == (pytest.approx(0.055), pytest.approx(0.10))
    unknown = finding("ME007", zeroing(0.04, added=0.06, spared=None))
    assert unknown.saving.expected == pytest.approx(0.04)


def test_filling_below_the_general_floor_passes():
    assert ended("ME007", zeroing(0.02, added=0.0)) is Fired
    assert ended("ME007", zeroing(0.02 - JUST, added=0.0)) is Passed


def test_on_a_host_the_verdict_on_zeros_is_their_own_sentence():
    zeroed = zeroing(0.2, added=0.1).memory_use
    known = on_host({"compute.other": 0.4}, memory_use=zeroed)
    found = diagnose(known, run_rules(known, RULES))
    assert found.headline == "Filling gradients with zeros costs 30.0 ms of every step"


# ME008


def test_what_the_link_must_move_after_all_computation_is_not_saved():
    hidden = finding("ME008", offloading(0.4, seconds=0.06))  # 60 ms of copies beside 60 ms of computation
    assert hidden.saving.expected == hidden.saving.high == pytest.approx(0.4)
    left = finding("ME008", offloading(0.4, seconds=0.08))
    assert left.saving.expected == pytest.approx(0.2)
    assert ended("ME008", offloading(0.4, seconds=0.1)) is Passed
    assert finding("ME008", offloading(0.4, seconds=0.07), pinned_ratio=0.85 * 7 / 8).saving.expected == pytest.approx(
        0.2
    )


def test_pinned_copies_that_are_slower_than_the_link_take_as_long_beside_kernels():
    assert finding("ME008", offloading(0.4, pinned_ns=60_000_000)).saving.expected == pytest.approx(0.4)
    assert finding("ME008", offloading(0.4, pinned_ns=80_000_000)).saving.expected == pytest.approx(0.2)
    assert ended("ME008", offloading(0.4, pinned_ns=100_000_000)) is Passed


def test_without_a_known_link_the_slowest_one_is_assumed():
    known = offloading(0.4, seconds=0.02, spec=None)
    assert finding("ME008", known).confidence == "low"
    assert ended("ME008", known, assumed_link_gb_per_s=1.0) is Passed


def test_pageable_buffers_and_room_on_the_device_are_told():
    roomy = Memory(capacity_bytes=100 * GB, peak_allocated_bytes=70 * GB - 1)
    text = finding("ME008", offloading(pageable=0.8, memory=roomy)).fix.text
    assert "Host buffers 80 % pageable → pinned." in text
    assert text.startswith("Keep more on the device: 70 % of 93.1 GiB is needed.")
    full = Memory(capacity_bytes=100 * GB, peak_allocated_bytes=70 * GB)
    assert (
        finding("ME008", offloading(memory=full)).fix.text == "Copy on a stream of its own, one layer ahead of its use."
    )


# ME009


# ME010


def titles(known):
    return [found.title for found in check("ME010", known).findings]


def test_the_fixes_of_a_failed_request_come_in_order_with_their_figures():
    known = holding(optimizer=4 * GB, asked=2 * GB, free=GB, of_loss=True, loss=GB)
    loss, activations, optimizer, batch = check("ME010", known).findings
    assert "2.79 GiB → 358 MiB, for which there was room" in loss.fix.text
    assert "4.66 GiB → about 1.16 GiB and the input of each block" in activations.fix.text
    assert "8 bit" in optimizer.fix.text
    # 6 of the 7 GB that shrink with the batch can be had beside the 5 GB that do not.
    assert "at most 86 % of this one fits" in batch.fix.text
    assert {found.bound for found in (loss, activations, optimizer, batch)} == {"memory-bound"}
    assert (batch.confidence, loss.confidence) == ("high", "medium")


def test_the_batch_that_fits_is_not_told_of_another_moment_or_where_all_would_fit():
    for known in (
        holding(asked=GB, free=9 * GB),
        holding(asked=GB, free=GB, activations=0),
        replace_failed(holding(asked=2 * GB, free=GB), in_use_bytes=4 * GB),
    ):
        assert "fits" not in check("ME010", known).findings[-1].fix.text


def replace_failed(known, **changes):
    (one,) = known.logs.own
    (failure,) = one.failed
    return replace(known, logs=replace(known.logs, own=(revise(one, failed=(revise(failure, **changes),)),)))


def test_the_state_of_the_optimizer_is_told_only_where_a_request_failed():
    assert not any("optimizer" in title for title in titles(holding(optimizer=8 * GB)))
    assert any("optimizer" in title for title in titles(holding(optimizer=5 * GB, asked=GB)))
    assert not any("optimizer" in title for title in titles(holding(optimizer=2 * GB, asked=GB)))


def test_beside_steps_a_full_memory_without_a_failed_request_is_no_finding():
    beside = [replace(known, logs=replace(known.logs, alone=False)) for known in (holding(), holding(asked=GB))]
    assert [type(check("ME010", known)) for known in beside] == [Passed, Fired]


def test_the_state_of_the_optimizer_is_told_from_its_share_on():
    share = 11 * GB // 4
    assert any("optimizer" in title for title in titles(holding(optimizer=share, asked=GB)))
    assert not any("optimizer" in title for title in titles(holding(optimizer=share - 1, asked=GB)))


def test_a_failed_request_that_idle_and_free_memory_could_have_served_is_fragmentation():
    for free, fires in ((GB, True), (GB - 1, False)):
        known = facts(memory_use=MemoryUse(oom=short(free)))
        assert (ended("ME002", known) is Fired) == fires


def short(free):
    return OutOfMemory(
        device="cuda:0", message="", requested_bytes=2 * GB, free_bytes=free, allocated_bytes=8 * GB,
        reserved_bytes=9 * GB, limit="device",
    )  # fmt: skip
