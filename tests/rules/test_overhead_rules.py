"""Rules about tiny copies, collections, Python, compilations, the profiler's weight, and threads without a core."""

import pytest

from profilerkit.analysis.device.device_facts import ColdFacts, SmallCopyFacts, SyncFacts
from profilerkit.analysis.device.kernels import LaunchFacts
from profilerkit.analysis.host.host_facts import CollectionFacts, CompileFacts, PythonFacts
from profilerkit.analysis.host.lines import HotLine
from profilerkit.analysis.host.operators import HeldFacts
from profilerkit.analysis.job_facts import HostFacts
from profilerkit.analysis.steps.phases import RecordingFacts
from profilerkit.analysis.steps.series import Stall
from profilerkit.diagnosis.verdict import diagnose
from profilerkit.model import revise
from profilerkit.model.run import STEP_TIMERS, Loader, Series, Signal, Trust
from profilerkit.rules import RULES
from profilerkit.rules.api import Fired, MissingData, NotApplicable, Passed
from profilerkit.rules.runner import run_rules
from tests.recipes import DEVICE, INPUT, MS, STEP_NS, facts, parts, replace
from tests.rules.promises import Cases, Promises, check, ended, finding
from tests.rules.test_rules import reading

JUST = 1e-6
TIMERS_ONLY = {"mode": "steps", "trace_read": False, "device": None, "syncs": None, "allocator": None}
ON_HOST = {"mode": "cpu", "device": None, "syncs": None, "allocator": None}
FRAMES = ("train.py(10): step", "metrics.py(20): update")


def churning(per_step=30.0, *, exposed=0.05, drained=0.1, blocked=0.5, to_host=None, operators=()):
    to_host = per_step if to_host is None else to_host
    copies = SmallCopyFacts(
        to_device=per_step - to_host,
        to_host=to_host,
        exposed_ns=exposed * STEP_NS,
        drained_ns=drained * STEP_NS,
        operators=operators,
    )
    syncs = SyncFacts(per_step=per_step, blocked_ns=blocked * STEP_NS, culprits=(), awaited_ratio=1.0)
    return facts({"sync.drain": drained, "sync.d2h": exposed}, small_copies=copies, syncs=syncs)


def collecting(share=0.1, *, watched=True, per_step=0.5, **changes):
    seen = CollectionFacts(per_step=per_step, pause_ns=20.0 * MS, longest_ns=60 * MS, full=3)
    return facts({"over.gc": share}, host=HostFacts(collections=seen if watched else None), **changes)


def python(share=0.3, *, frames=(), between=0.0, **changes):
    told = PythonFacts(per_step=2.0, longest_ns=(5 * MS, 25 * MS), frames=frames, frames_ratio=0.9 if frames else None)
    device = replace(DEVICE, between_ratio=between)
    return facts({"over.python": share}, **{"host": HostFacts(python=told), "device": device, **changes})


def compiling(share=0.2, *, steps=4, recompiled=("0/1", "0/2"), source="measured", regions=1, guards=(), longer=0.0):
    compiles = CompileFacts(
        share=share,
        longer=longer or share,
        steps=steps,
        of=20,
        regions=regions,
        recompiled=recompiled,
        source=source,
        guards=guards,
    )
    return facts({"warm.compile": share}, host=HostFacts(compiles=compiles))


def traced(ratio=1.3, own=0.0, *options):
    host = HostFacts(recording=RecordingFacts(options=options, events=0.0, waited_ns=0.0, hidden_ns=0.0))
    return facts({"other.prof": own} if own else {}, trust=Trust(mode="gpu", inflation_ratio=ratio), host=host)


def switched(*on, **changes):
    return facts({"input.wait": 0.2}, host=HostFacts(switches=on), **changes)


def held(share, place="hook", operator="aten::histc", **changes):
    one = HeldFacts(place, operator, 6.0, share, share / 2, line="train.py(7): hook")
    return facts({"compute.other": 0.5}, **{**ON_HOST, "host": HostFacts(held=(one,)), **changes})


def queueing(share=0.4, *, threads=16, cores=8.0, used=0.9, sampled=True, **changes):
    """A rank whose processes use ``used`` of its cores, a quarter of that in workers."""
    queue = Series(name="host.thread_queue", unit="ratio", n=9, mean=share, p10=share, p90=share, maximum=share)
    own = revise(queue, name="host.process_cores", mean=0.75 * used * (cores or 1.0))
    workers = revise(queue, name="host.worker_cores", mean=0.25 * used * (cores or 1.0))
    samples = (own, workers, queue) if sampled else (own, workers)
    known = {"samples": samples, "usable_cores": cores, "host": HostFacts(threads=threads)}
    return facts({"over.python": 0.2}, **{**ON_HOST, **known, **changes})


CASES = Cases(
    fires={
        "OV003": churning(),
        "OV004": collecting(),
        "OV005": python(),
        "OV006": compiling(),
        "OV007": traced(),
        "OV008": queueing(),
        "OV009": switched("TORCH_DISTRIBUTED_DEBUG=DETAIL"),
        "OV010": held(0.4),
    },
    passes={
        "OV003": churning(5.0),
        "OV004": collecting(0.001),
        "OV005": python(0.01),
        "OV006": compiling(0.001),
        "OV007": traced(1.01),
        "OV008": queueing(threads=8),
        "OV009": switched("FURTHER=1"),
        "OV010": held(0.9, "optimizer", "Adam"),
    },
    missing={
        "OV003": facts(**TIMERS_ONLY),
        "OV004": facts(),
        "OV005": facts(**TIMERS_ONLY),
        "OV006": facts(**TIMERS_ONLY),
        "OV007": facts(**TIMERS_ONLY),
        "OV008": queueing(host=HostFacts()),
        "OV009": facts(),
        "OV010": facts(**TIMERS_ONLY),
    },
    not_applicable={
        "OV003": facts(**ON_HOST),
        "OV005": replace(python(), cold=ColdFacts(share=0.5, calls=())),
        "OV006": facts(),
        "OV008": queueing(sampled=False),
        "OV010": facts(),
    },
    thresholds={
        ("OV003", "most_per_step"): (churning(10.0 + JUST), churning(10.0)),
        ("OV004", "smallest_share"): (collecting(0.02), collecting(0.02 - JUST)),
        ("OV004", "fewest_collections"): (collecting(per_step=3 / 20), collecting(per_step=2 / 20)),
        ("OV005", "smallest_share"): (python(0.05), python(0.05 - JUST)),
        ("OV005", "queued_ratio"): (replace(python(0.1), taken=0.5), replace(python(0.1 - JUST), taken=0.5)),
        ("OV006", "fewest_steps"): (compiling(steps=2), compiling(steps=1)),
        ("OV007", "inflation_ratio"): (traced(1.10 + JUST), traced(1.10)),
        ("OV007", "own_share"): (traced(1.0, 0.02 + JUST), traced(1.0, 0.02)),
        ("OV010", "smallest_share"): (held(0.05, "read"), held(0.05 - JUST, "read")),
        ("OV010", "smallest_operator"): (
            held(0.15, "forward", "aten::nonzero"),
            held(0.15 - JUST, "forward", "aten::nonzero"),
        ),
        ("OV010", "smallest_unknown"): (held(0.5, "forward"), held(0.5 - JUST, "forward")),
        ("OV008", "own_ratio"): (queueing(used=0.8 + JUST), queueing(used=0.8 - JUST)),
        ("OV008", "queued_ratio"): (queueing(1 / 6 + JUST), queueing(1 / 6)),  # a fifth of the other five sixths
    },
    untried=frozenset(
        {
            ("OV005", "unmeasured_inflation_ratio"),
            ("OV010", "avoidable_ratio"),
            ("OV009", "anomaly_ratio"),
            ("OV009", "anomaly_most"),
        }
    ),
    observations=frozenset({"OV007", "OV009"}),
)


class TestPromises(Promises):
    cases = CASES


# OV003


def test_tiny_copies_cost_what_they_stop_the_device():
    found = finding("OV003", churning(operators=(("aten::item", 400), ("aten::nonzero", 200))))
    assert (found.saving.expected, found.saving.high) == (pytest.approx(0.15), pytest.approx(0.15))
    assert found.evidence[1].origin == "400 × aten::item, 200 × aten::nonzero"
    assert (found.bound, found.detail) == ("overhead-bound", "sync")


def test_no_more_idle_time_is_saved_than_the_host_was_blocked():
    saving = finding("OV003", churning(blocked=0.02)).saving
    assert (saving.expected, saving.high) == (pytest.approx(0.07), pytest.approx(0.15))
    assert "cost the device" in check("OV003", churning(exposed=0.01, blocked=0.005)).reason


@pytest.mark.parametrize(("to_host", "words"), [(20.0, "Keep these values on the device"), (10.0, "Create these")])
def test_the_fix_follows_the_direction(to_host, words):
    assert words in finding("OV003", churning(to_host=to_host)).fix.text


# OV004


def test_collections_that_nobody_watched_are_not_said_to_be_absent():
    assert ended("OV004", facts()) is MissingData
    stacks = Trust(mode="gpu", signals=(Signal(name="Python stacks", state="measured"),))
    assert ended("OV004", facts(trust=stacks)) is Passed
    assert finding("OV004", collecting(watched=False)).confidence == "medium"
    assert finding("OV004", collecting()).confidence == "high"


def test_other_ranks_wait_for_a_collection_too():
    assert "other ranks" not in finding("OV004", collecting()).why
    assert "The other ranks wait meanwhile" in finding("OV004", collecting(world_size=2)).why


# OV005


def test_the_function_that_holds_python_is_named_where_stacks_tell():
    found = finding("OV005", python(frames=FRAMES))
    assert found.why == "90 % of these stretches are spent in update (metrics.py:20)."
    assert found.fix.text.startswith("Move update (metrics.py:20) off the loop")
    assert "If it gets the batch" not in found.fix.text
    unseen = finding("OV005", python(frames=FRAMES, input=None)).fix.text
    assert "If it gets the batch: wrap the iterable of batches" in unseen
    assert found.evidence[2].range_ns == (5 * MS, 25 * MS)
    assert "wait without an event" in finding("OV005", python()).why


def test_the_recordings_own_python_is_not_the_users():
    own = python(frames=(*FRAMES, "site-packages/profilerkit/capture/deep.py(110): done"))
    assert check("OV005", own).reason == "90 % of the longer stretches of Python are the recording's own"
    assert ended("OV005", python(frames=("my_profilerkit/capture.py(1): run", "capture/deep.py(1): done"))) is Fired


def test_the_users_function_is_named_where_a_built_in_holds_the_time():
    frames = ("p/iterable_in_main.py(5): tokenize", "p/iterable_in_main.py(5): <listcomp>", "<built-in function sum>")
    found = finding("OV005", python(frames=frames))
    assert found.fix.text.startswith("Move tokenize (p/iterable_in_main.py:5) off the loop")
    assert "spent in tokenize (p/iterable_in_main.py:5)." in found.why
    assert (found.line.file, found.line.line, found.line.function) == ("p/iterable_in_main.py", 5, "tokenize")


def test_short_gaps_between_operators_are_not_the_users_python():
    known = python(0.3, between=0.5)
    saving = finding("OV005", known).saving
    assert (saving.expected, saving.high) == (pytest.approx(0.15), pytest.approx(0.3))
    assert ended("OV005", python(0.3, between=0.9)) is Passed
    assert ended("OV001", python(0.3, between=0.9)) is Fired


def test_the_line_that_calls_most_operators_is_named():
    def fix(frames, share):
        line = HotLine(frames, share, share - 0.1, share + 0.1, 40)
        return finding("OV001", facts({"over.dispatch": 0.4}, **ON_HOST, lines={"calls": line})).fix

    logs = ("train.py(20): main", "train.py(9): log_norms")
    assert (fix(logs, 0.5).text[:31], fix(logs, 0.5).code) == ("Vectorise log_norms (train.py:9", "")
    assert fix(logs, 0.2).text.startswith("Fewer, larger operators: ")


def test_a_step_that_launches_graphs_is_not_told_to_use_the_mode_that_makes_them():
    def fix(launches):
        return finding("OV001", facts({"over.dispatch": 0.3}, launches=launches)).fix.text

    assert "reduce-overhead" in fix(LaunchFacts(events=100, unlinked=0, in_graphs=0, graph_launches=0))
    assert "Capture the whole step" in fix(LaunchFacts(events=100, unlinked=0, in_graphs=80, graph_launches=2))


def test_an_npu_is_not_told_to_launch_cuda_graphs():
    known = facts({"over.dispatch": 0.3})
    fix = finding("OV001", replace(known, ranks=(replace(known.rank, device="Ascend NPU"),))).fix
    assert ("TASK_QUEUE_ENABLE=2" in fix.text, fix.code, fix.changes) == (True, "", ())


def test_reads_that_divide_a_step_end_its_graphs_however_short():
    line = HotLine(("train.py(9): act",), 0.8, 0.7, 0.9, 40)

    def found(reads, kernels):
        device = replace(DEVICE, kernels_per_step=kernels)
        return finding(
            "OV001", facts({"over.dispatch": 0.8}, syncs=reading(reads), device=device, lines={"calls": line})
        )

    few, many = found(128.0, 5_200.0), found(128.0, 2_300.0)
    assert many.fix.text.startswith("Remove the 128 reads of values in every step")
    assert (len(few.fix.changes), many.fix.changes) == (1, ())  # compiling does not go beyond a read
    assert found(2.0, 4.0).fix == few.fix  # the loss and one number more
    assert many.saving.low == pytest.approx(few.saving.low / 2)
    assert (many.saving.expected, many.saving.high) == (few.saving.expected, few.saving.high)
    assert [row.line.line for row in many.evidence if row.line] == [9]


def test_on_a_host_without_device_python_is_what_no_operator_does():
    found = finding("OV005", python(**ON_HOST))
    assert found.title == "Python outside of operators takes 30.0 ms of every step"


def test_without_untraced_steps_the_low_end_is_of_python_that_takes_half_as_long():
    unknown = python(trust=Trust(mode="gpu"))
    halved, whole = finding("OV005", unknown), finding("OV005", python())
    share = whole.saving.expected
    assert halved.saving.low == pytest.approx(share / 2 / (1 - share / 2))
    assert finding("OV005", unknown, unmeasured_inflation_ratio=1.0).saving.low == whole.saving.low
    assert "without the profiler" in halved.confirm


def test_python_in_a_loop_without_a_loader_may_be_what_gets_the_batch():
    unseen = finding("OV005", python(input=None))
    assert "It may be what gets the batch" in unseen.why
    assert "prof.wrap(batches)" in unseen.fix.text
    assert "with_stack=True" in unseen.fix.text
    stacks = Trust(mode="gpu", inflation_ratio=1.0, signals=(Signal(name="Python stacks", state="measured"),))
    assert "with_stack=True" not in finding("OV005", python(input=None, trust=stacks)).fix.text
    assert "prof.wrap" not in finding("OV005", python(input=INPUT)).fix.text


# OV006


@pytest.mark.parametrize(
    ("guard", "fix"),
    [
        ("L['w'] == 0.28", "Pass w as a tensor"),
        ("w == 0.28", "Pass w as a tensor"),
        ("L['self'].scale == 3", "Pass self.scale as a tensor"),
        ("tensor 'x' size mismatch at index 0. expected 4, actual 5", "mark the sizes that change as dynamic"),
        ("len(L['xs']) == 3", "mark the sizes that change as dynamic"),
        ("___check_obj_id(G['activation'], 93824)", "Keep activation as it is"),
        ("GLOBAL_STATE changed: grad_mode ", "Call it in one gradient mode"),
        ("{0.format} ??", "Keep the value that this guard checks"),
    ],
)
def test_the_fix_is_for_the_guard_that_failed(guard, fix):
    found = finding("OV006", compiling(guards=(guard,)))
    assert fix in found.fix.text
    assert f"The guard that failed is {guard}" in found.why


def test_compiling_again_is_told_with_what_and_how_often():
    found = finding("OV006", compiling())
    assert found.title == "4 of 20 settled steps compile, for 100 ms each"
    assert found.why.endswith("Compiled again: 0/1, 0/2.")
    assert (found.detail, found.confidence, found.saving.expected) == ("compile", "high", 0.2)
    assert finding("OV006", compiling(longer=0.5)).saving.high > found.saving.high
    assert finding("OV006", compiling(source="derived")).confidence == "medium"
    assert [entry.unit for entry in finding("OV006", compiling(regions=None)).evidence] == ["ratio", "count", "ns"]


def test_where_compilations_were_watched_their_absence_is_known():
    timed = HostFacts(collections=CollectionFacts(per_step=0.0, pause_ns=0.0, longest_ns=0, full=0))
    assert ended("OV006", facts(host=timed, **TIMERS_ONLY)) is NotApplicable


# OV007


def test_another_profiler_that_is_always_on_is_named_without_a_price():
    found = finding("OV007", facts(**TIMERS_ONLY, has_rival=True))
    assert "Another profiler is on" in found.title
    assert (found.bound, found.saving) == (None, None)
    assert found.evidence[0].value is not None


def test_a_recording_with_stacks_is_doubted_only_without_untraced_steps():
    found = finding("OV007", traced(None, 0.0, "with_stack", "profile_memory"))
    assert found.title == "Recorded with with_stack and profile_memory, which slows the host by an unknown amount"
    assert (found.confidence, found.fix, found.saving) == ("low", None, None)
    assert ended("OV007", traced(1.05, 0.0, "with_stack", "profile_memory")) is Passed
    assert ended("OV007", traced(None)) is MissingData


def test_the_weight_of_the_profiler_is_told_by_what_is_known_of_it():
    assert finding("OV007", traced()).title == "Traced steps took 1.30 × the time of the others"
    assert "own work takes 5.0 %" in finding("OV007", traced(None, 0.05)).title


def test_the_profilers_own_work_is_not_called_0_where_no_event_shows_it():
    assert [row.label for row in finding("OV007", traced()).evidence] == ["Traced step over untraced step"]
    assert len(finding("OV007", traced(1.3, 0.05)).evidence) == 2


# OV008


def test_threads_are_brought_down_to_the_cores_of_the_rank():
    found = finding("OV008", queueing(threads=96, cores=11.5))
    assert found.fix.text == "Threads 96 → 11, in the environment of every rank."
    assert found.title == "96 threads on 11.5 cores: training waits 40 % of the time"
    assert (found.detail, found.confidence) == ("contention", "medium")
    assert "1, in the environment" in finding("OV008", queueing(threads=2, cores=0.5)).fix.text


def test_threads_that_fit_the_cores_are_not_to_blame():
    assert ended("OV008", queueing(0.9, threads=8, cores=8.0)) is Passed
    assert ended("OV008", queueing(0.9, threads=9, cores=8.0)) is Fired
    assert ended("OV008", queueing(0.9, threads=1, cores=0.5)) is Passed


def test_behind_a_device_no_more_is_saved_than_it_waits():
    known = queueing(0.4, mode="gpu", device=replace(DEVICE, busy_ratio=0.9))
    found = finding("OV008", known)
    assert (found.saving.expected, found.saving.high) == (pytest.approx(0.05), pytest.approx(0.1))
    assert (found.saving.low, found.saving.method) == (0.0, "bound")


def test_what_the_training_thread_waits_is_that_of_the_judged_steps():
    known = queueing(0.6)
    steady = round(5e9 / known.mean_step_ns)
    judged = replace(known, steps=revise(known.steps, queued_ratio=0.4, steady=steady))
    found = finding("OV008", judged)
    assert found.title.endswith("training waits 40 % of the time")
    assert found.why.startswith("In the judged steps; 60 % over all samples. With more threads than cores")
    assert found.saving.high == pytest.approx(0.4)
    assert finding("OV008", known).saving.high == pytest.approx(0.6)


def test_where_others_take_the_cores_no_fewer_threads_are_advised():
    assert "uses 1.6 of its 8 cores: other processes take them" in check("OV008", queueing(used=0.2)).reason


def test_a_host_that_was_not_sampled_is_missing():
    assert ended("OV008", queueing(samples=())) is MissingData
    assert ended("OV008", queueing(cores=None)) is MissingData


def test_cores_that_were_not_sampled_are_not_zero():
    known = queueing()
    own, workers, queue = known.samples
    assert ended("OV008", replace(known, samples=(workers, queue))) is MissingData
    whole = replace(known, samples=(revise(own, mean=7.2), queue))
    assert ended("OV008", whole) is Fired
    assert ended("OV008", replace(whole, loader=Loader(kind="DataLoader", num_workers=4))) is MissingData


# What the verdict makes of them


@pytest.mark.parametrize(
    ("code", "detail", "headline"),
    [
        ("OV003", "sync", "The GPU loses 15.0 ms of every 100 ms step after host syncs"),
        ("OV004", "gc", "Garbage collection takes 10.0 ms of every step"),
        ("OV005", "python", "The GPU idles 30.0 ms of every 100 ms step while Python runs"),
        ("OV006", "compile", "4 of 20 settled steps compile, for 100 ms each"),
        ("OV008", "contention", "16 threads on 8 cores: training waits 40 % of the time"),
    ],
)
def test_the_verdict_names_the_cause(code, detail, headline):
    known = CASES.fires[code] if code != "OV008" else queueing(parts=facts().parts)
    found = diagnose(known, [outcome for outcome in run_rules(known, RULES) if outcome.rule == code])
    assert (found.bound, found.detail, found.headline) == ("overhead-bound", detail, headline)
    assert len(found.headline.split()) <= 14


def test_kernels_that_start_late_are_still_another_processs():
    known = facts({"over.launch": 0.4}, device=replace(DEVICE, late_launch_ratio=1.0))
    assert "after kernels were launched" in diagnose(known, run_rules(known, RULES)).headline


def test_compiling_again_is_told_once():
    stall = Stall(
        kind="compile",
        part="other.phase",
        count=4,
        period=None,
        excess_ns=500.0 * MS,
        share=0.2,
        source="measured",
        steps=(3, 17),
    )
    known = replace(compiling(), stalls=(stall,))
    fired = [outcome.rule for outcome in run_rules(known, RULES) if outcome.status == "fired"]
    assert fired == ["OV006"]


# OV009


def test_each_switch_is_told_and_priced_where_its_cost_is_known():
    on = ("CUDA_LAUNCH_BLOCKING=1", "TORCH_DISTRIBUTED_DEBUG=DETAIL", "torch.autograd.set_detect_anomaly")
    known = replace(switched(*on), parts=parts({"over.launch": 0.4, "compute.math": 0.4, "input.wait": 0.2}))
    found = {one.title: one for one in check("OV009", known).findings}
    assert set(found) == {f"{name} is on" for name in on}
    anomaly, blocking, checked = (found[f"{name} is on"] for name in (on[2], on[0], on[1]))
    assert anomaly.saving.expected == pytest.approx(0.5 * 0.8)
    assert "set_detect_anomaly(False)" in anomaly.fix.text
    assert (blocking.saving.method, blocking.saving.high) == ("bound", pytest.approx(0.4))
    assert (checked.saving, checked.bound) == (None, None)
    on_host = replace(switched("CUDA_LAUNCH_BLOCKING=1"), mode="cpu")
    assert ended("OV009", on_host) is Passed


# OV010


@pytest.mark.parametrize("operator", ["library::kernel", "aten::add_", "aten::gelu", "aten::native_norm_backward"])
def test_the_mathematics_of_a_model_is_no_finding(operator):
    assert ended("OV010", held(0.4, "backward", operator)) is Passed
    assert finding("OV010", held(0.6, "forward", "aten::sort")).fix.text.startswith("Call aten::sort less often")


def test_hooks_are_a_share_of_the_step_that_no_trace_made_longer():
    known = held(0.2)
    one = replace(known.host.held[0], time_ns=0.3 * STEP_NS)
    timed = Signal(name=STEP_TIMERS, state="measured")
    known = replace(known, host=HostFacts(held=(one,)), trust=revise(known.trust, signals=(timed,)))
    assert finding("OV010", known).saving.expected == pytest.approx(0.98 * 0.3)


def test_hooks_of_modules_are_told_by_sampled_stacks():
    line = HotLine(("train.py(9): log_activation",), 0.3, 0.2, 0.4, 60)
    found = finding("OV010", facts(lines={"forward_hook": line}, host=HostFacts(held=()), **ON_HOST))
    assert found.title == "A hook of modules takes 30.0 ms of every step: log_activation (train.py:9)"
    assert found.saving.expected == pytest.approx(0.98 * 0.3)
    few = replace(line, low=0.04)
    assert ended("OV010", facts(lines={"forward_hook": few}, host=HostFacts(held=()), **ON_HOST)) is Passed


def test_hooks_of_modules_cost_a_device_only_what_it_waits():
    line = HotLine(("train.py(9): log_activation",), 0.3, 0.2, 0.4, 60)
    assert ended("OV010", facts({"over.python": 0.04}, lines={"forward_hook": line})) is NotApplicable
    assert finding("OV010", facts({"over.python": 0.2}, lines={"forward_hook": line})).saving.high <= 0.2


def test_the_checks_of_anomaly_detection_are_no_hooks():
    known = held(0.4, operator="aten::isnan")
    on = replace(known, host=replace(known.host, switches=("torch.autograd.set_detect_anomaly",)))
    assert (ended("OV010", known), ended("OV010", on)) == (Fired, Passed)


def test_hooks_are_priced_and_an_operator_of_the_model_is_only_named():
    hook, model = (finding("OV010", held(0.4, place, "aten::unique2")) for place in ("hook", "backward"))
    assert (hook.bound, hook.detail) == ("overhead-bound", "hook")
    assert hook.saving.expected == pytest.approx(0.98 * 0.4)
    assert "hook (train.py:7)" in hook.title
    assert (model.bound, model.saving) == (None, None)
