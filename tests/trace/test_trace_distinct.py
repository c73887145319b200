from profilerkit.trace.merged import distinct
from tests.recipes import Trace, training


def doubled(trace):
    return trace.changed(lambda event: [event, event])


def test_a_trace_without_copies_is_left_as_it_is():
    columns = training(3, fetch=20, comm=30).read()
    assert distinct(columns) is columns


def test_copies_are_left_out_and_said():
    once, twice = training(3, fetch=20, comm=30).read(), distinct(doubled(training(3, fetch=20, comm=30)).read())
    assert len(twice) == len(once)
    assert sorted(twice.ts_ns.tolist()) == sorted(once.ts_ns.tolist())
    assert f"{len(once)} events are exact copies of others and count once." in twice.damage.notes


def test_collectives_still_stand_at_their_rows():
    twice = distinct(doubled(training(3, comm=30)).read())
    assert len(twice.collectives) == 3
    assert all("nccl" in twice.strings[twice.name[args.row]] for args in twice.collectives)


def test_memory_instants_count_once():
    trace = Trace()
    trace.step(0, 0, 1_000)
    trace.memory(100, 512, allocated=512, reserved=1024)
    trace.memory(200, 512, allocated=1024, reserved=1024)
    assert distinct(doubled(trace).read()).memory.allocated.tolist() == [512, 1024]


def test_events_that_differ_in_one_thing_are_no_copies():
    trace = Trace()
    trace.step(0, 0, 1_000)
    trace.kernel(100, 200, launch=(50, 60))
    trace.kernel(100, 200, launch=(50, 60))
    trace.kernel(100, 200, stream=8)
    trace.kernel(100, 200, stream=9)
    assert len(distinct(trace.read())) == 7
