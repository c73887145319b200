"""What the training thread does while it gets a batch. Recipes are in µs, answers in ns."""

import pytest

from profilerkit.api import analyze
from profilerkit.model.finding import in_order
from profilerkit.rundir.layout import INPUT_SPAN
from tests.recipes import (
    AUTOGRAD,
    ELEMENTWISE,
    LOADER_THREAD,
    SINGLE,
    US,
    WORKERS,
    Log,
    Trace,
    training,
    write_run,
)

DATASET = "train.py(12): __getitem__"
RESIZE = "transformers/models/owlv2/image_processing_owlv2.py(301): resize"
ZOOM = "scipy/ndimage/_interpolation.py(739): zoom"
READ = "<built-in method read of _io.BufferedReader object at 0x7f6c68eec460>"
COLLATE = "torch/utils/data/_utils/collate.py(340): default_collate"


def fetching(name=SINGLE, **marks):
    """A step of 1,000 µs that begins with a fetch of 500, told from a fetch event where there is one."""
    trace = Trace()
    trace.step(0, 1_000, 2_000)
    if name:
        trace.loader(1_000, 1_500, name=name, **marks)
    trace.kernel(1_520, 2_000, launch=(1_500, 1_510))
    return trace


def input_parts(trace):
    return {name: time // US for name, time in trace.parts().items() if name.startswith("input.")}


def test_frames_inside_a_fetch_split_it_into_reading_preparing_handing_over_and_waiting():
    trace = fetching()
    trace.frame("torch/utils/data/_utils/fetch.py(50): fetch", 1_010, 1_490)
    trace.frame(DATASET, 1_010, 1_400)
    trace.frame(READ, 1_020, 1_120)
    trace.frame("PIL/Image.py(2100): resize", 1_120, 1_300)
    trace.frame("<built-in method acquire of _thread.lock object at 0x7f>", 1_300, 1_350)
    trace.frame(COLLATE, 1_400, 1_480)
    trace.op(1_410, 1_470, name="aten::stack")
    assert input_parts(trace) == {"input.fetch": 100, "input.prep": 250, "input.ipc": 80, "input.wait": 70}


@pytest.mark.parametrize(
    ("inner", "part"),
    [
        (READ, "input.fetch"),
        ("<built-in function open>", "input.fetch"),
        ("<built-in function sleep>", "input.fetch"),
        ("numpy/lib/_npyio_impl.py(311): load", "input.fetch"),
        ("PIL/Image.py(3400): open", "input.fetch"),
        ("PIL/ImageFile.py(189): load", "input.prep"),
        ("torchvision/transforms/functional.py(400): resize", "input.prep"),
        ("<built-in function cvtColor>", "input.prep"),
        ("<built-in method clip of numpy.ndarray object at 0x7ce279c694d0>", "input.prep"),
        ("tokenizers/implementations/base_tokenizer.py(90): encode_batch", "input.prep"),
        ("my_dataset.py(4): collate_fn", "input.ipc"),
        ("torch/utils/data/_utils/pin_memory.py(60): pin_memory", "input.ipc"),
        ("train.py(40): augment", "input.prep"),  # Python code computes, whatever it is called
        ("<built-in method select of select.epoll object at 0x7f>", "input.wait"),
    ],
)
def test_the_innermost_named_frame_owns_the_time(inner, part):
    trace = fetching()
    trace.frame(inner, 1_100, 1_400)
    assert input_parts(trace).get(part, 0) >= 300


def test_an_unnamed_builtin_belongs_to_the_frame_around_it():
    trace = fetching()
    trace.frame(ZOOM, 1_000, 1_500)
    trace.frame("<built-in function spline_filter1d>", 1_000, 1_500)
    assert input_parts(trace) == {"input.prep": 500}


def test_what_the_main_thread_does_while_workers_load_is_waiting_but_for_the_hand_over():
    trace = fetching(WORKERS)
    trace.frame("torch/utils/data/dataloader.py(1278): _try_get_data", 1_000, 1_490)
    trace.frame("<built-in method poll of select.poll object at 0x7f>", 1_010, 1_300)
    trace.frame(READ, 1_300, 1_310)
    trace.frame("<built-in function loads>", 1_310, 1_400)
    trace.frame("torch/multiprocessing/reductions.py(537): rebuild_storage_fd", 1_320, 1_390)
    assert input_parts(trace) == {"input.wait": 410, "input.ipc": 90}


@pytest.mark.parametrize(
    "name",
    [
        "train.py(13): get_batch",
        "data/loader.py(70): __next__",
        "lib.py(8): next_batch",
        "train.py(2): load_train_batch",
    ],
)
def test_a_function_named_for_getting_a_batch_is_input_without_a_loader(name):
    trace = fetching(None)
    trace.frame(name, 1_000, 1_500)
    assert input_parts(trace) == {"input.prep": 500}
    found = trace.facts().input
    assert (found.origin, found.fetches, found.single_process) == (name, 1, None)


@pytest.mark.parametrize("name", ["get_batch", "data loading", "## load_batch ##", "dataloader"])
def test_a_range_of_the_users_that_is_named_for_getting_a_batch_is_input(name):
    trace = fetching(None)
    trace.annotation(name, 1_000, 1_500)
    assert input_parts(trace) == {"input.wait": 500}


@pytest.mark.parametrize("name", ["my loop", "batch norm", "load checkpoint", "tempfile.py(153): __next__", "get_loss"])
def test_other_names_are_no_input(name):
    trace = fetching(None)
    trace.annotation(name, 1_000, 1_500)
    trace.frame(name, 1_000, 1_500)
    assert input_parts(trace) == {}
    assert trace.facts().input is None


def test_a_frame_that_issues_the_steps_work_does_not_get_a_batch():
    trace = fetching(None)
    trace.frame("train_loader.py(180): __next__", 1_000, 1_600)  # a pipeline's own iteration: it runs the model
    assert input_parts(trace) == {}


def test_a_frame_that_copies_its_batch_to_the_device_still_gets_one():
    trace = fetching(None)
    trace.frame("train.py(13): get_batch", 1_000, 1_495)
    trace.copy(1_480, 1_490, launch=(1_470, 1_475))
    assert input_parts(trace)["input.prep"] >= 470


@pytest.mark.parametrize("name", ["data", "load", "get batch", "data loading", "fetch"])
def test_a_phase_named_for_data_is_input(name):
    trace = fetching(None)
    trace.phase(name, 1_000, 1_500)
    assert input_parts(trace) == {"input.wait": 500}


def test_a_phase_named_for_data_is_a_wait_in_the_step_log(tmp_path):
    log = Log().steps(30, 10_000, phase=("data", 4_000))
    report = analyze(write_run(tmp_path / "run", [log], loader=None))
    assert {part.part: part.share for part in report.breakdown}["input.wait"] == pytest.approx(0.4)
    assert report.verdict.bound == "input-bound"


def test_a_loader_inside_a_phase_named_for_data_is_counted_once(tmp_path):
    log = Log()
    for _ in range(30):
        start = log.step(10_000, phase=("data", 4_000))
        log.record(2, start + 100, 3_000, -1)  # the wrapped loader's own wait
    report = analyze(write_run(tmp_path / "run", [log], loader=None))
    assert {part.part: part.share for part in report.breakdown}["input.wait"] == pytest.approx(0.4)


def test_without_a_device_a_function_that_gets_a_batch_is_input():
    trace = Trace()
    trace.step(0, 1_000, 2_000)
    trace.frame("train.py(13): get_batch", 1_000, 1_400)
    trace.op(1_100, 1_200, name="aten::mul")
    trace.op(1_200, 1_250, name="aten::stack")
    trace.op(1_400, 2_000, name="aten::mm")
    assert trace.parts() == {"input.prep": 350 * US, "input.ipc": 50 * US, "compute.math": 600 * US}


def test_without_a_device_a_frame_around_the_model_does_not_get_a_batch():
    trace = Trace()
    trace.step(0, 1_000, 2_000)
    trace.frame("data_pipeline.py(13): __next__", 1_000, 2_000)
    trace.op(1_400, 2_000, name="aten::mm")
    assert trace.parts() == {"over.python": 400 * US, "compute.math": 600 * US}


def leading_up(steps=6, *, quiet=300, stack=10, size=1 << 20, kernel_first=False, **fields):
    """Marked steps, each with ``quiet`` µs before a batch copy, told by no event but the stacking at their end."""
    trace = Trace(**fields)
    at = 1_000
    for number in range(steps):
        begin, at = at, at + quiet
        if stack:
            trace.op(at - stack, at, name="aten::stack")
        if kernel_first:
            trace.kernel(at + 10, at + 20, launch=(at, at + 8))
            at += 20
        trace.copy(at + 10, at + 30, size=size, launch=(at, at + 8))
        trace.kernel(at + 30, at + 630, launch=(at + 12, at + 20))
        at += 630
        trace.step(number, begin, at)
    return trace


def test_the_lead_in_that_makes_a_batch_and_ends_in_its_copy_is_input():
    trace = leading_up()
    steady = 4
    assert (trace.parts()["input.wait"], trace.parts()["input.ipc"]) == (steady * 290 * US, steady * 10 * US)
    found = trace.facts().input
    assert (found.gap, found.fetches, found.source) == ("before the copy", steady, "derived")


@pytest.mark.parametrize("copied_by", [None, "aten::to"])
def test_plain_python_before_the_batch_copy_may_be_anything(tmp_path, copied_by):
    trace = leading_up(12, quiet=1_500, stack=0)
    trace.op(100, 110)
    if copied_by:
        for number in range(12):
            at = 2_500 + 2_130 * number
            trace.op(at - 4, at + 10, name=copied_by)
            trace.op(at - 3, at - 2, name="aten::empty_strided")
    report = analyze(trace.write(tmp_path / "trace.json"))
    assert not [part.part for part in report.breakdown if part.part == "input.wait"]
    assert not [outcome for outcome, _ in in_order(report.outcomes) if outcome.rule == "IN001"]
    (finding,) = [finding for outcome, finding in in_order(report.outcomes) if outcome.rule == "OV005"]
    assert "It may be what gets the batch: the recording does not show it." in finding.why


def test_what_leads_up_to_a_batch_copy_is_input_where_no_operator_could_show_it(tmp_path):
    report = analyze(leading_up(12, quiet=1_500, stack=0).write(tmp_path / "trace.json"))
    assert (report.verdict.bound, report.verdict.confidence) == ("input-bound", "low")
    assert "input.wait" not in leading_up(12, quiet=900, stack=0).parts()


def test_input_that_is_only_inferred_says_so(tmp_path):
    report = analyze(leading_up(12).write(tmp_path / "trace.json"))
    assert {part.part: part.source for part in report.breakdown}["input.wait"] == "derived"
    assert (report.verdict.bound, report.verdict.confidence) == ("input-bound", "low")
    (finding,) = [finding for outcome, finding in in_order(report.outcomes) if outcome.rule == "IN001"]
    assert "Nothing recorded names what makes it meanwhile" in finding.why


def test_input_that_the_work_before_the_copy_shows_is_surer(tmp_path):
    report = analyze(leading_up(12, stack=200).write(tmp_path / "trace.json"))
    assert (report.verdict.bound, report.verdict.confidence) == ("input-bound", "medium")


@pytest.mark.parametrize(
    ("name", "shows"),
    [
        *((name, False) for name in ("aten::detach", "aten::empty", "aten::empty_strided", "aten::select", "aten::t")),
        *((name, False) for name in ("aten::view", "aten::item", "aten::slice", "aten::unsqueeze_", "detach_")),
        *((name, True) for name in ("aten::stack", "aten::pin_memory", "aten::index_select")),
        *((name, True) for name in ("aten::randint", "aten::lift_fresh", "aten::take", "aten::cat")),
    ],
)
def test_an_operator_that_only_allocates_or_looks_at_memory_shows_no_batch(name, shows):
    trace = leading_up(1, quiet=30_000, stack=0)
    trace.op(1_020, 1_025, name=name)
    assert ("input.wait" in trace.parts()) is shows


def test_operators_in_the_lead_in_prepare_the_batch():
    trace = leading_up(1, stack=0)
    trace.op(1_100, 1_200, name="aten::mul")
    trace.op(1_200, 1_250, name="aten::stack")
    assert input_parts(trace) == {"input.prep": 100, "input.ipc": 50, "input.wait": 150, "input.h2d": 28}


@pytest.mark.parametrize(
    ("why", "changes"),
    [("a copy too small for a batch", {"size": 65_535}), ("a kernel comes first", {"kernel_first": True})],
)
def test_a_lead_in_without_a_batch_copy_as_the_first_work_is_the_users_python(why, changes):
    found = leading_up(1, **changes).parts()
    assert "input.wait" not in found, why
    assert found["over.python"] >= 290 * US, why


def test_where_a_loader_is_seen_the_rest_of_the_lead_in_is_not_taken_for_input():
    trace = leading_up(1)
    trace.loader(1_000, 1_100)
    assert input_parts(trace) == {"input.wait": 100, "input.h2d": 28}


def test_steps_that_nobody_marked_have_no_lead_in():
    trace = leading_up().changed(lambda event: [] if event["name"].startswith("ProfilerStep") else event)
    assert "input.wait" not in trace.parts()


@pytest.mark.parametrize(("marks", "input_seen"), [("step()", True), ("optimizer step", False)])
def test_steps_that_capture_inferred_have_no_lead_in(tmp_path, marks, input_seen):
    log = Log().steps(30, 960)
    run = write_run(tmp_path / "run", [log], traces={0: leading_up(10)}, loader=None, steps_found_by=marks)
    shares = {part.part: part.share for part in analyze(run).breakdown}
    assert ("input.wait" in shares) is input_seen


def test_what_comes_before_a_read_of_the_last_steps_result_does_not_feed_the_next():
    trace = leading_up(1)
    trace.sync(1_150, 1_200)
    found = trace.parts()
    assert (found["input.wait"], found["over.python"], found["sync.drain"]) == (90 * US, 150 * US, 50 * US)


def test_the_batch_copy_of_another_thread_leads_up_to_nothing():
    trace = leading_up(1).changed(
        lambda event: {**event, "tid": LOADER_THREAD} if event["name"] == "cudaMemcpyAsync" else event
    )
    assert "input.wait" not in trace.parts()


def test_the_functions_that_hold_the_wait_are_named_outer_first():
    trace = fetching()
    chain = ("<built-in function next>", "pipe.py(164): preprocess", RESIZE, ZOOM, "<built-in function zoom_shift>")
    for depth, name in enumerate(chain):
        trace.frame(name, 1_006 + depth, 1_414 - depth)
    trace.frame("transformers/image_transforms.py(390): normalize", 1_410, 1_480)
    found = trace.facts().input
    assert found.frames == (RESIZE, ZOOM, "<built-in function zoom_shift>")
    assert found.frames_ratio == pytest.approx(0.8)


def test_what_makes_the_batch_is_named_though_it_calls_deep():
    trace = fetching(name=None)
    chain = ("gpt.py(3): get_batch", "a.py(1): b", "a.py(2): c", "a.py(3): d", "a.py(4): e")
    for depth, name in enumerate(chain):
        trace.frame(name, 1_006 + depth, 1_414 - depth)
    assert trace.facts().input.frames == (chain[0], *chain[-2:])


def test_a_function_that_makes_the_batch_is_not_told_twice():
    trace = fetching(name=None)
    chain = ("gpt.py(3): get_batch", "gpt.py(9): load_batch", "a.py(1): b")
    for depth, name in enumerate(chain):
        trace.frame(name, 1_006 + depth, 1_414 - depth)
    assert trace.facts().input.frames == chain


@pytest.mark.parametrize("loader", [SINGLE, WORKERS])
def test_inside_a_loader_the_innermost_functions_are_named_whatever_they_are_called(loader):
    trace = fetching(name=loader)
    chain = (DATASET, "gpt.py(3): get_batch", "a.py(1): b", "a.py(2): c", "a.py(3): d")
    for depth, name in enumerate(chain):
        trace.frame(name, 1_006 + depth, 1_414 - depth)
    assert trace.facts().input.frames == chain[-3:]


def test_a_generator_that_is_entered_twice_counts_its_time_once():
    trace = fetching()
    trace.frame("gen.py(1): outer", 1_000, 1_500)
    trace.frame("gen.py(2): inner", 1_000, 1_200)
    trace.frame("gen.py(2): inner", 1_050, 1_190)
    trace.frame("gen.py(2): inner", 1_200, 1_240)
    found = trace.facts().input
    assert (found.frames, found.frames_ratio) == (("gen.py(1): outer",), 1.0)


def test_in_the_lead_in_of_a_step_the_frames_say_what_it_is_spent_on():
    trace = leading_up(1, stack=0)
    trace.frame("train.py(5): sample_ids", 1_010, 1_260)
    trace.frame(READ, 1_050, 1_250)
    trace.frame("train.py(1): main", 0, 3_000)  # the loop itself
    assert input_parts(trace) == {"input.wait": 50, "input.prep": 50, "input.fetch": 200, "input.h2d": 28}
    found = trace.facts().input
    assert (found.gap, found.frames[-1], found.frames_ratio) == ("before the copy", READ, pytest.approx(2 / 3))


def test_timers_take_the_functions_from_the_trace(tmp_path):
    log = Log().steps(40, 10_000, wait=4_000)
    trace = fetching()
    trace.frame(RESIZE, 1_010, 1_490)
    report = analyze(write_run(tmp_path / "run", [log], traces={0: trace}))
    labels = [entry.label for _, finding in in_order(report.outcomes) for entry in finding.evidence]
    assert "Input wait in resize (owlv2/image_processing_owlv2.py:301)" in labels


def test_without_stacks_and_with_workers_no_function_is_named():
    trace = fetching(WORKERS)
    trace.frame("torch/utils/data/dataloader.py(1278): _try_get_data", 1_000, 1_490)
    assert trace.facts().input.frames == ()
    assert training(4, fetch=100).facts().input.frames == ()


def test_a_fetch_of_another_thread_feeds_nobody():
    trace = fetching(None)
    trace.frame("train.py(13): get_batch", 1_000, 1_500, tid=AUTOGRAD)
    assert input_parts(trace) == {}


def test_frames_of_a_loader_count_its_fetches_once():
    trace = fetching()
    trace.frame("torch/utils/data/dataloader.py(720): __next__", 999, 1_501)
    trace.kernel(1_900, 1_950, name=ELEMENTWISE)
    assert trace.facts().input.fetches == 1


def misnamed(*, timed, evaluates=False):
    """On the host: 100 µs of fetching, and 900 under a range named like the loader in which the step computes."""
    trace = Trace()
    for number in range(6):
        start = 1_000 + 1_000 * number
        if timed:
            trace.loader(start, start + 100, name=INPUT_SPAN)
        trace.loader(start + 10, start + 90)
        if evaluates:
            trace.loader(start + 200, start + 700)
            trace.op(start + 300, start + 400, name="aten::stack")
        else:
            trace.loader(start + 100, start + 1_000)
            trace.op(start + 110, start + 990, name="aten::mm")
        trace.step(number, start, start + 1_000)
    return trace


def shares(trace):
    parts = trace.parts()
    found = {name: time / sum(parts.values()) for name, time in parts.items()}
    return {**found, "input": sum(share for name, share in found.items() if name.startswith("input."))}


def test_a_range_with_a_loaders_name_around_computation_is_not_believed_beside_timed_fetches():
    found = shares(misnamed(timed=True))
    assert found["input"] == pytest.approx(0.1, abs=0.001)
    assert found["compute.math"] == pytest.approx(0.88, abs=0.001)


def test_loader_events_are_believed_where_nothing_timed_the_fetches():
    assert shares(misnamed(timed=False))["input"] == pytest.approx(0.98, abs=0.001)


def test_an_evaluations_own_loader_outside_of_timed_fetches_is_believed():
    assert shares(misnamed(timed=True, evaluates=True))["input"] == pytest.approx(0.6, abs=0.001)
