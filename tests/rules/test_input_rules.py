"""Rules about shallow queues, pinned copies, restarted workers, cold epochs, and samples fetched one by one."""

import pytest

from profilerkit.analysis.device.copies import CopyFacts
from profilerkit.analysis.events import SkippedBatches
from profilerkit.analysis.host.lines import HotLine
from profilerkit.analysis.host.operators import HeldFacts
from profilerkit.analysis.job_facts import HostFacts
from profilerkit.analysis.whatif import cheaper_batch, loader_fix
from profilerkit.analysis.workers.capacity import opening_share
from profilerkit.analysis.workers.queue import EpochFacts, LoadingFacts, PaddingFacts, QueueFacts
from profilerkit.model import revise
from profilerkit.model.memory import Memory
from profilerkit.model.run import Loader, Series
from profilerkit.rules.api import Fired, MissingData, NotApplicable, Passed
from profilerkit.rules.input.loader import cheaper_input
from tests.recipes import INPUT, MS, STEP_NS, facts, made, replace
from tests.rules.promises import Cases, Promises, check, ended, finding

JUST = 1e-6
GB = 10**9
FOUR = Loader(kind="DataLoader", num_workers=4, prefetch_factor=2, batch_size=64, persistent_workers=False)
ALONE = Loader(kind="DataLoader", num_workers=0, batch_size=64)


def queue(*, error=0.0, four=0.2, eight=0.21, workers=None, out_of_order=0.0):
    by_prefetch = {depth: gain for depth, gain in ((4, four), (8, eight)) if gain is not None}
    return QueueFacts(
        batches=20,
        error_ratio=error,
        by_prefetch=by_prefetch,
        by_workers=workers or {},
        out_of_order=out_of_order,
        slow_ratio=0.9,
    )


def bursty(share=0.3, *, making=200 * MS, variation=1.2, replayed=None, **changes):
    """Four workers that take ``making`` per batch in the mean, on a step of 100 ms that waits ``share`` of it."""
    workers = made(making, fetch=0.9, variation_ratio=variation, **changes.pop("made", {}))
    loading = LoadingFacts(queue=queue() if replayed is None else replayed)
    known = {"workers": workers, "loading": loading, "loader": FOUR, "usable_cores": 16.0}
    return facts({"input.wait": share}, **{**known, **changes})


def copying(exposed=0.1, *, in_line=1.0, per_step=1.0, shares=None, time=0.1, **changes):
    pinned = CopyFacts(
        per_step=per_step,
        bytes_per_step=1e8,
        time_ns=time * STEP_NS,
        exposed_ns=exposed * STEP_NS,
        in_line_ratio=in_line,
    )
    return facts(shares or {"input.h2d": exposed}, pinned=pinned, **changes)


def restarting(boundary=900 * MS, *, restart=600 * MS, steps=30.0, renewed=True, loader=FOUR, **changes):
    """Epochs of 30 steps of 100 ms, between which a boundary of 900 ms lies."""
    epochs = EpochFacts(count=4, steps=steps, boundary_ns=boundary, restart_ns=restart, renewed=renewed)
    return facts({"input.wait": 0.4}, loading=LoadingFacts(epochs=epochs), loader=loader, **changes)


def cold(first=10.0 * MS, later=1.0 * MS, *, stored=(0.9, 0.0), **changes):
    epochs = EpochFacts(
        count=3,
        steps=10.0,
        boundary_ns=0.0,
        first_wait_ns=first,
        later_wait_ns=later,
        first_stored_ratio=stored[0],
        later_stored_ratio=stored[1],
    )
    return facts({"input.wait": 0.02}, loading=LoadingFacts(epochs=epochs), **changes)


def itemwise(each=100_000, *, samples=64.0, share=0.4, computing=1.0, size=None, count=1, **changes):
    """One worker that makes batches of ``samples`` samples of ``each`` ns."""
    workers = made(each * samples, count=count, fetch=1.0 - computing, batch_bytes=size)
    # The worker is the limit: the step waits for it, and takes as long as a batch.
    step = {"batches_per_step": STEP_NS / (each * samples)}
    known = {"workers": revise(workers, **step), "loading": LoadingFacts(items=samples), "loader": FOUR}
    return facts({"input.prep": share}, **{**known, **changes})


GET = "data.py(31): __getitem__"


def decoding(share, *frames, each=100_000):
    """The same, with ``share`` of the fetching in a function that the data set calls."""
    line = HotLine(frames or (GET, "data.py(40): decode"), share, share, share, 60)
    return replace(itemwise(each), lines={"fetch": line})


def uneven(active=2.0, *, share=0.4, count=4, **changes):
    """Workers of which ``active`` still have data and make a batch per step of 100 ms together."""
    workers = made(active * STEP_NS, count=count, fetch=0.9, active=active)
    return facts({"input.wait": share}, **{"workers": workers, "loader": FOUR, "usable_cores": 16.0, **changes})


def alone(share=0.4, *, samples=1000, cpu=1.0):
    """A loader without workers whose thread computes a batch of ``samples`` samples."""
    loader = Loader(kind="DataLoader", num_workers=0, batch_size=samples)
    return facts({"input.prep": share}, loader=loader, input=replace(INPUT, single_process=True, cpu_ratio=cpu))


def alone_held(share, *, samples, held):
    """The same, which holds the thread for ``held`` of the step and exposes ``share`` of it."""
    known = alone(share, samples=samples)
    return replace(known, input=replace(known.input, held_ratio=held))


TIMERS_ONLY = {"mode": "steps", "trace_read": False, "device": None, "syncs": None, "allocator": None}


def padded(ratio=0.5, *, beyond=0.3, looks=5, computes=0.8, **changes):
    padding = PaddingFacts(looks=looks, padded_ratio=ratio, beyond_ratio=beyond)
    return facts({"input.wait": 1.0 - computes}, loading=LoadingFacts(padding=padding), **changes)


def dropped(time=10 * 10**9, *, of=100 * 10**9):
    skipped = SkippedBatches(count=600, end_ns=round(time), time_ns=round(time), ratio=time / of)
    return facts(loading=LoadingFacts(skipped=skipped))


CASES = Cases(
    fires={
        "IN004": bursty(),
        "IN010": copying(),
        "IN011": restarting(),
        "IN012": cold(),
        "IN013": itemwise(),
        "IN014": uneven(),
        "IN015": padded(),
    },
    passes={
        "IN004": bursty(variation=0.1),
        "IN010": copying(0.01),
        "IN011": restarting(renewed=False),
        "IN012": cold(1.0 * MS),
        "IN013": itemwise(300_000),
        "IN014": uneven(4.0),
        "IN015": padded(0.1),
    },
    missing={
        "IN004": bursty(loading=None),
        "IN010": facts(**TIMERS_ONLY),
        "IN011": restarting(boundary=None, restart=None, steps=None, renewed=None),
        "IN012": cold(later=None),
        "IN013": itemwise(loading=LoadingFacts()),
        "IN014": uneven(workers=made(active=None)),
        "IN015": facts(loading=None),
    },
    not_applicable={
        "IN004": bursty(loader=ALONE),
        "IN010": facts(device=None),
        "IN011": restarting(loader=ALONE),
        "IN012": cold(later=None, stored=(0.1, None)),
        "IN014": uneven(loader=ALONE),
    },
    thresholds={
        ("IN004", "variation_ratio"): (bursty(variation=0.5), bursty(variation=0.5 - JUST)),
        ("IN010", "smallest_share"): (copying(0.03), copying(0.03 - JUST)),
        ("IN011", "smallest_gap_ns"): (
            restarting(40 * MS, restart=20 * MS, steps=5.0),
            restarting(40 * MS, restart=20 * MS - 1, steps=5.0),
        ),
        ("IN012", "slower_ratio"): (cold(8.0 * MS, 4.0 * MS), cold(8.0 * MS - 1, 4.0 * MS)),
        ("IN012", "smallest_share"): (cold(2.5 * MS, 0.5 * MS), cold(2.5 * MS - 1, 0.5 * MS)),
        ("IN013", "most_ns"): (itemwise(200_000 - 1), itemwise(200_000)),
        ("IN013", "computing_share"): (itemwise(computing=0.7 + JUST), itemwise(computing=0.7 - JUST)),
        ("IN013", "own_share"): (decoding(1 / 3), decoding(1 / 3 + JUST)),
        ("IN013", "own_ns"): (decoding(1.0, GET, each=49_999), decoding(1.0, GET, each=50_000)),
        ("IN013", "fewest_samples"): (itemwise(samples=16.0), itemwise(samples=16.0 - JUST)),
        ("IN014", "with_data"): (uneven(3.0 - JUST), uneven(3.0)),
        ("IN015", "smallest_padding"): (padded(0.2), padded(0.2 - JUST)),
        ("IN015", "fewest_looks"): (padded(looks=3), padded(looks=2)),
        ("IN015", "smallest_skip"): (dropped(5e9), dropped(5e9 - 1_000)),
        ("IN015", "longest_skip_ns"): (dropped(60e9, of=10**13), dropped(60e9 - 1, of=10**13)),
        ("IN013", "most_bytes"): (itemwise(size=64 * 16384), itemwise(size=64 * 16384 + 1)),
    },
    untried=frozenset(
        {
            ("IN004", "enough_ratio"),
            ("IN012", "stored_fall"),
            ("IN013", "batched_ratio"),
            ("IN015", "beyond_share"),
            ("IN015", "avoidable_ratio"),
        }
    ),
    observations=frozenset({"IN012"}),
    timed=frozenset({"IN011"}),
)


class TestPromises(Promises):
    cases = CASES


# IN004


def test_the_smallest_depth_that_gains_nearly_as_much_is_proposed():
    found = finding("IN004", bursty())
    assert "prefetch_factor 2 → 4: 4 workers then keep 16 batches under way." in found.fix.text
    assert (found.saving.expected, found.saving.high, found.saving.method) == (0.2, 0.3, "replay")
    deeper = finding("IN004", bursty(replayed=queue(four=0.1)))
    assert "prefetch_factor 2 → 8" in deeper.fix.text
    assert "2 → 4" in finding("IN004", bursty(replayed=queue(four=0.1, eight=0.11)), enough_ratio=0.9).fix.text
    assert "2 → 8" in finding("IN004", bursty(replayed=queue(four=0.1, eight=0.11)), enough_ratio=0.92).fix.text


def test_a_mean_rate_that_is_too_low_is_no_burst():
    assert ended("IN004", bursty(making=280 * MS)) is Fired
    assert "slower than the step" in check("IN004", bursty(making=281 * MS)).reason


def test_nothing_is_predicted_from_a_replay_that_misses_the_run():
    assert ended("IN004", bursty(replayed=queue(error=0.05))) is Fired
    result = check("IN004", bursty(replayed=queue(error=-0.051)))
    assert isinstance(result, MissingData)
    assert "misses the measured time by 5.1 %" in result.reason


def test_a_wait_that_deeper_prefetch_does_not_mend_is_left_to_others():
    assert (
        "prefetch_factor 2 → 8 would save nothing"
        in check("IN004", bursty(replayed=queue(four=-0.01, eight=-0.02))).reason
    )
    assert "too little" in check("IN004", bursty(replayed=queue(four=0.01, eight=0.01))).reason
    eight = Loader(kind="DataLoader", num_workers=4, prefetch_factor=8)
    assert "deep already" in check("IN004", bursty(replayed=queue(four=None, eight=None), loader=eight)).reason


def test_memory_caps_the_depth():
    def roomy(free_gb):
        samples = (
            Series(name="host.memory_used", unit="bytes", n=9, mean=0, p10=0, p90=0, maximum=(90 - free_gb) * GB),
        )
        return bursty(
            replayed=queue(four=0.1),
            made={"batch_bytes": GB},
            samples=samples,
            memory=Memory(host_capacity_bytes=100 * GB),
        )

    assert "2 → 8" in finding("IN004", roomy(24)).fix.text  # 4 workers keep 6 batches of 1 GB more each
    assert "2 → 4" in finding("IN004", roomy(23)).fix.text
    assert "no room" in check("IN004", roomy(7)).reason


def test_batches_out_of_order_are_offered_with_their_price():
    assert "in_order" not in finding("IN004", bursty()).fix.text
    text = finding("IN004", bursty(replayed=queue(out_of_order=0.25))).fix.text
    assert "in_order=False saves 25 % without more memory, but changes the order of the samples." in text


# IN003, whose saving is the replay's


def test_the_saving_of_more_workers_is_the_replayed_one():
    gains = {5: 0.31, 8: 0.33}
    known = bursty(0.4, making=250 * MS, replayed=queue(workers=gains))
    assert loader_fix(known).workers == 5
    assert loader_fix(known).expected == 0.31
    unfaithful = bursty(0.4, making=250 * MS, replayed=queue(workers=gains, error=0.2))
    assert loader_fix(unfaithful).expected == pytest.approx(0.4)
    assert loader_fix(bursty(0.2, making=300 * MS, replayed=queue(workers={5: 0.31}))).expected == 0.2


def test_cores_bound_the_replayed_saving_as_well():
    gains = dict.fromkeys(range(5, 17), 0.4)
    known = bursty(0.4, making=250 * MS, made={"cpu_ns": 249 * MS}, usable_cores=5.0, replayed=queue(workers=gains))
    assert loader_fix(known).expected == pytest.approx(1 - (249 + 60) / 5 / 100)


# IN010


@pytest.mark.parametrize(
    ("cores", "workers", "left"),
    [(16.0, 5, 0.5 + 0.1 + 0.016), (1.0, 1, 0.5 + 0.4 + 0.1)],  # on one core the worker and the training take turns
)
def test_workers_do_not_work_through_an_evaluation(cores, workers, left):
    """Of a step of 100 ms 50 are its share of an evaluation: 40 ms of a batch do not hide behind 10 ms of training."""
    loader = Loader(kind="DataLoader", num_workers=0)
    told = replace(INPUT, single_process=True, cpu_ratio=1.0)
    known = facts({"input.prep": 0.4, "other.eval": 0.5}, loader=loader, input=told, usable_cores=cores)
    fix = loader_fix(known)
    assert (fix.workers, fix.expected) == (workers, pytest.approx(1 - left))


def test_copies_hide_behind_no_more_than_there_is_computation():
    found = finding("IN010", copying(0.6, shares={"input.h2d": 0.6, "compute.math": 0.25, "over.python": 0.15}))
    assert (found.saving.expected, found.saving.high) == (0.25, pytest.approx(0.6))
    assert (found.bound, found.detail) == ("input-bound", "h2d")


def test_copies_that_kernels_hide_already_leave_less_to_hide_behind():
    known = copying(0.2, time=0.4, shares={"input.h2d": 0.2, "compute.math": 0.3, "over.python": 0.5})
    found = finding("IN010", known)
    assert found.saving.expected == pytest.approx(0.1)
    assert "send uint8" in found.fix.text
    assert "send uint8" not in finding("IN010", copying()).fix.text


@pytest.mark.parametrize(
    ("alone", "hidden", "awaited"),
    [(0.2, {}, 0.2), (0.0, {"input.wait": 0.2}, 0.2), (0.05, {"over.python": 0.15}, 0.05), (0.3, {}, 0.2)],
)
def test_exposed_copies_cost_what_kernels_or_the_loop_wait_for(alone, hidden, awaited):
    found = finding("IN010", copying(0.2, in_line=0.0, alone={"input.h2d": alone}, hidden=hidden))
    assert (found.saving.expected, found.confidence) == (pytest.approx(awaited), "medium")
    assert "one batch earlier" in found.fix.text


def test_copies_that_the_host_is_later_than_cost_nothing():
    late = copying(0.2, in_line=0.0, alone={"over.python": 0.1}, hidden={"over.python": 0.2})
    assert "0 % of the step for batch copies" in check("IN010", late).reason
    assert "no batch" in check("IN010", copying(per_step=0.0)).reason


# IN011


def test_only_the_start_and_the_end_of_the_workers_is_expected_back():
    found = finding("IN011", restarting())
    assert (found.saving.expected, found.saving.high) == (pytest.approx(0.2), pytest.approx(0.3))
    assert found.title == "New workers in every epoch cost 600 ms per 30 steps"
    assert "persistent_workers False → True" in found.fix.text
    assert found.confidence == "high"


def test_without_the_workers_records_only_the_bound_is_known():
    found = finding("IN011", restarting(restart=None, renewed=None))
    assert (found.confidence, found.saving.method, found.saving.low) == ("low", "bound", 0.0)


def test_long_epochs_do_not_mind_new_workers():
    assert ended("IN011", restarting(steps=299.0)) is Fired
    assert "costs 2.0 % of an epoch" in check("IN011", restarting(steps=301.0)).reason


def test_a_restart_is_a_share_of_its_epoch_however_few_openings_the_judged_steps_hold():
    epochs = EpochFacts(
        count=3, steps=30.0, boundary_ns=900 * MS, restart_ns=600 * MS, time_ns=6_000 * MS, renewed=True
    )
    found = finding("IN011", facts({"input.wait": 0.4}, loading=LoadingFacts(epochs=epochs), loader=FOUR))
    assert found.saving.expected == pytest.approx(0.1)


def test_workers_that_are_kept_are_not_restarted():
    kept = Loader(kind="DataLoader", num_workers=4, persistent_workers=True)
    assert ended("IN011", restarting(loader=kept, renewed=None)) is Passed
    assert ended("IN011", facts(loader=FOUR)) is MissingData
    unknown = restarting(loader=None, renewed=None)
    assert "not known" in check("IN011", unknown).reason
    assert ended("IN011", restarting(loader=None)) is Fired  # the processes were seen to change


# IN012


def test_a_cold_epoch_is_an_observation():
    found = finding("IN012", cold())
    assert (found.fix, found.confidence) == (None, "high")
    assert found.title == "The first epoch waits 10.0 ms for a batch, later ones 1.00 ms"


@pytest.mark.parametrize("stored", [(0.9, 0.41), (None, None), (0.9, None)])
def test_the_file_cache_is_blamed_only_where_the_bytes_show_it(stored):
    found = finding("IN012", cold(stored=stored))
    assert found.confidence == "low"
    assert "does not show" in found.why
    assert finding("IN012", cold(stored=(0.9, 0.4))).confidence == "high"


def test_one_cold_epoch_is_not_extrapolated():
    result = check("IN012", cold(later=None))
    assert "90 % of what it read came from storage" in result.reason
    assert isinstance(check("IN012", cold(later=None, stored=(None, None))), NotApplicable)


# IN013


def test_without_workers_the_waiting_thread_tells():
    found = finding("IN013", alone())  # 1,000 samples of 40 µs
    assert found.title == "1,000 samples of 40.0 µs each are fetched one by one"
    assert (found.saving.expected, found.saving.high) == (pytest.approx(0.3), pytest.approx(0.4))
    assert ended("IN013", alone(cpu=0.69)) is Passed
    known = alone(cpu=0.5)
    queued = replace(known, input=replace(known.input, queue_ratio=0.3))  # which is left out of what batching saves
    assert finding("IN013", queued).saving.expected == pytest.approx(0.15)
    assert finding("IN013", alone(), batched_ratio=0.5).saving.expected == pytest.approx(0.2)


@pytest.mark.parametrize(("share", "kind"), [(0.2 - JUST, Fired), (0.2 + JUST, Passed)])
def test_samples_that_compute_are_not_tiny(share, kind):
    """Half of the wait of 40 % is the limit."""
    held = HeldFacts("fetch", "aten::sin", 12.0, share, share)
    assert ended("IN013", replace(alone(), host=HostFacts(held=(held,)))) is kind


def test_what_the_device_hides_of_a_batch_is_part_of_its_time():
    found = finding("IN013", alone_held(0.1, samples=400, held=0.4))
    assert found.title == "400 samples of 100 µs each are fetched one by one"
    assert next(entry.value for entry in found.evidence if entry.label == "Time of a batch") == pytest.approx(40 * MS)
    assert (found.saving.expected, found.saving.high) == (pytest.approx(0.1), pytest.approx(0.1))
    # A sample of more than 200 µs is not tiny, however little of it is exposed.
    assert ended("IN013", alone_held(0.1, samples=150, held=0.4)) is Passed


def test_a_loader_that_nobody_waits_for_is_left_alone():
    assert ended("IN013", itemwise(share=0.03 - JUST)) is Passed
    assert ended("IN013", facts({"input.prep": 0.4}, loader=FOUR)) is MissingData
    assert ended("IN013", facts({"input.prep": 0.4}, loader=ALONE, input=None)) is MissingData


# What other rules make of it


def test_less_work_per_batch_does_not_start_workers_sooner():
    epochs = EpochFacts(count=4, steps=10.0, boundary_ns=0.2 * GB, opening_ns=0.1 * GB, restart_ns=0.1 * GB)
    busy = facts({"input.wait": 0.4}, workers=made(), loader=FOUR, usable_cores=16.0)
    opened = replace(busy, loading=LoadingFacts(epochs=epochs))  # a tenth of each step, of which 0.4 waits
    assert (opening_share(busy), opening_share(opened)) == (0.0, pytest.approx(0.1))
    assert (cheaper_input(busy), cheaper_input(opened)) == (pytest.approx(0.2), pytest.approx(0.15))
    assert cheaper_batch(busy, 400 * MS) == pytest.approx(0.4)
    assert cheaper_batch(opened, 400 * MS) == pytest.approx(0.3)
    longer = replace(epochs, opening_ns=9.0 * GB)
    assert cheaper_input(replace(busy, loading=LoadingFacts(epochs=longer))) == 0.0


# IN014


def test_parts_of_unlike_length_are_dealt_out_evenly():
    found = finding("IN014", uneven(1.6, share=0.7))  # 1.6 workers take 100 ms, four would take 40 ms
    assert found.title == "1.6 of 4 workers still had data, on average"
    assert found.saving.expected == pytest.approx(0.6)
    assert found.saving.high == pytest.approx(0.7, abs=0.05)
    assert found.confidence == "medium"
    assert "info.num_workers" in found.fix.code


def test_with_all_workers_at_work_the_rest_of_the_step_is_the_limit():
    assert finding("IN014", uneven(1.6, share=0.3)).saving.expected == pytest.approx(0.3)
    # Four workers that compute all the time find four cores, beside a step that computes for 30 ms of its 100.
    computing = uneven(1.6, share=0.7, workers=made(1.6 * STEP_NS, active=1.6), usable_cores=2.0)
    assert finding("IN014", computing).saving.expected == pytest.approx(1 - (1.6 + 0.3) / 2, abs=0.01)


def test_less_work_on_a_batch_saves_what_the_workers_that_have_data_save():
    known = uneven(1.0, share=0.9)  # one worker of four makes all batches, each in the time of a step
    assert cheaper_batch(known, STEP_NS / 2) == pytest.approx(0.5)
    assert cheaper_batch(uneven(4.0, share=0.9), 2 * STEP_NS) == pytest.approx(0.5)


# IN015


@pytest.mark.parametrize(("beyond", "fix"), [(0.15, "longest"), (0.14, "of similar length")])
def test_padding_beyond_the_longest_sequence_is_a_matter_of_the_batchs_length(beyond, fix):
    found = finding("IN015", padded(0.5, beyond=beyond, host=HostFacts(held=())))
    assert fix in found.fix.text
    assert found.title == "50 % of the tokens in a batch are padding"
    assert found.saving.expected == pytest.approx(0.8 * (beyond + 0.8 * (0.5 - beyond)))
    assert found.saving.high == pytest.approx(0.8 * 0.75)


def test_the_optimizer_does_not_grow_with_the_length_of_a_batch():
    optimizer = HeldFacts("optimizer", "Adam", 6.0, 0.3, 0.3)
    found = finding("IN015", padded(0.5, beyond=0.5, host=HostFacts(held=(optimizer,))))
    assert found.saving.expected == pytest.approx(0.5 * (0.8 - 0.3))
    assert finding("IN015", padded(0.5, beyond=0.5)).saving.method == "bound"  # nothing tells the optimizer


def test_on_a_processor_the_hosts_work_may_be_that_of_each_token():
    shares = {"input.wait": 0.2, "over.dispatch": 0.4}
    bound = {mode: finding("IN015", revised(padded(), shares, mode)).saving.high for mode in ("cpu", "gpu")}
    assert bound == {"cpu": pytest.approx(0.6), "gpu": pytest.approx(0.3)}


def revised(known, shares, mode):
    return replace(facts(shares), loading=known.loading, mode=mode)


def test_without_what_the_device_computes_padding_has_no_price():
    found = finding("IN015", replace(facts({"idle.unknown": 1.0}), loading=padded().loading))
    assert (found.bound, found.saving) == (None, None)
    assert found.fix is not None


def test_dropped_batches_are_told_with_the_time_that_each_start_takes():
    found = finding("IN015", dropped())
    assert found.title == "600 batches were fetched and dropped before training began: 10 s"
    assert (found.bound, found.saving, [row.value for row in found.evidence]) == (None, None, [600, 10 * 10**9])
