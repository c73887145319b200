"""The memory section: numbers with their source, the peak of every step, what was alive at the peak."""

import msgspec
import pytest

from profilerkit.model.memory import AliveAtPeak, Memory, MemoryRow
from profilerkit.model.step import SlowSteps, Warmup
from profilerkit.report import html, markdown, terminal, view
from profilerkit.report.figures import memory_paths
from profilerkit.report.memory import columns_of, memory_view
from profilerkit.report.tiles import tiles_of
from tests.report.samples import SAMPLES, memory_rows
from tests.report.test_view import spaces

GIB = 1 << 30


def told(**fields):
    return memory_view(msgspec.structs.replace(SAMPLES["balanced"](), memory=Memory(**fields)))


def facts(**fields):
    return {fact.label: (fact.value, fact.note) for fact in told(**fields).facts}


def test_every_number_says_how_it_came_about():
    known = SAMPLES["input_bound"]().memory
    for fact in memory_view(SAMPLES["input_bound"]()).facts:
        assert any(word in fact.note for word in ("measured", "derived", "sampled")), fact
    assert {fact.label for fact in memory_view(SAMPLES["input_bound"]()).facts} >= {
        "Fragmentation",
        "Headroom",
        "Allocations tried again",
        "Growth, allocated",
    }
    assert known.fragmentation_ratio is not None


def test_what_was_not_measured_is_left_out():
    assert told().facts == ()
    assert list(facts(peak_allocated_bytes=GIB)) == ["Peak allocated"]
    assert "Allocations tried again" not in facts(peak_allocated_bytes=GIB, allocator_retries=0)


def test_memory_of_the_host_is_labelled_and_fills_no_device():
    found = facts(peak_allocated_bytes=GIB, place="host", capacity_bytes=8 * GIB)
    assert found["Peak allocated"] == ("1.00 GiB", "measured, on the host, since the recording began")
    assert "Headroom" not in found
    assert told(peak_allocated_bytes=GIB, place="host", capacity_bytes=8 * GIB).used is None


def test_more_than_the_capacity_leaves_no_headroom_and_says_so():
    found = facts(peak_reserved_bytes=9 * GIB, capacity_bytes=8 * GIB)
    assert found["Headroom"] == ("none", "derived, more is taken than there is")
    assert facts(peak_reserved_bytes=8 * GIB, capacity_bytes=8 * GIB)["Headroom"] == ("0 B", "derived")


def test_growth_is_told_with_its_interval_and_the_time_to_a_full_memory_as_an_estimate():
    growth = SAMPLES["input_bound"]().memory.growth
    found = facts(growth=growth)
    assert found["Growth, allocated"] == (
        "20.0 MiB per step",
        "derived, 99 % interval 18.0 MiB to 23.0 MiB; full in about 720 steps, 2.1 min, estimated",
    )
    assert found["Growth, process"] == ("none that lasts", "derived, 50 points")


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({"peak_reserved_bytes": 4 * GIB, "capacity_bytes": 8 * GIB}, "of 8.00 GiB, reserved"),
        ({"peak_allocated_bytes": 4 * GIB}, "allocated"),
        ({"peak_device_used_bytes": 4 * GIB, "capacity_bytes": 8 * GIB}, "of 8.00 GiB, all processes"),
        ({"peak_process_bytes": 4 * GIB, "host_capacity_bytes": 8 * GIB}, "of 8.00 GiB, of the process"),
        ({"peak_allocated_bytes": 4 * GIB, "place": "host"}, "allocated on the host while recording"),
    ],
)
def test_the_tile_says_which_memory_it_is(fields, note):
    report = SAMPLES["lengths_only"]()
    tiles = tiles_of(msgspec.structs.replace(report, memory=Memory(**fields), breakdown=()))
    assert ("Peak memory", "4.00 GiB", note) in [(tile.label, tile.value, tile.note) for tile in tiles]


def test_the_capacity_is_drawn_where_it_does_not_flatten_the_steps():
    rows = memory_rows(5)  # they peak at 66 GiB
    near = columns_of(Memory(rows=rows, rows_of="allocated", capacity_bytes=80 * GIB))
    far = columns_of(Memory(rows=rows, rows_of="allocated", capacity_bytes=800 * GIB))
    assert (near.capacity_drawn, near.top_bytes) == (True, 80 * GIB)
    assert (far.capacity_drawn, far.top_bytes) == (False, 66 * GIB)
    assert "800 GiB, lies far above" in told(rows=rows, rows_of="allocated", capacity_bytes=800 * GIB).caption


def test_the_columns_are_as_high_as_the_memory():
    paths, width = memory_paths(columns_of(Memory(rows=(MemoryRow(index=0, peak_bytes=25, reserved_bytes=100),) * 2)))
    assert width == 10
    assert paths == {"memory": "M0 100h4V75h-4zM5 100h4V75h-4z", "memory pale": "M0 75h4V0h-4zM5 75h4V0h-4z"}


def test_many_steps_share_columns_that_keep_the_highest():
    rows = tuple(MemoryRow(index=n, peak_bytes=500 if n == 777 else 100) for n in range(1_000))
    columns = columns_of(Memory(rows=rows, rows_of="process"))
    assert (len(columns.rows), columns.group) == (200, 5)
    assert max(row.peak_bytes for row in columns.rows) == 500
    assert "highest of 5 neighbouring steps" in told(rows=rows, rows_of="process").caption


def test_one_step_is_no_figure():
    assert columns_of(Memory(rows=memory_rows(1))) is None
    assert (told(rows=memory_rows(1)).title, told(rows=memory_rows(1)).table) == ("", None)


@pytest.mark.parametrize(
    ("peaks", "title"),
    [
        ((100, 100, 101), "Memory is even: steps peak at 101 B of 1.00 KiB"),
        ((100, 900, 100), "Step 1 needs most memory: 900 B of 1.00 KiB; the least of a step is 100 B"),
    ],
)
def test_the_title_is_the_finding(peaks, title):
    rows = tuple(MemoryRow(index=n, peak_bytes=peak) for n, peak in enumerate(peaks))
    assert told(rows=rows, rows_of="device", capacity_bytes=1_024).title == title


def test_memory_that_recording_left_behind_is_told_as_such():
    rows = tuple(MemoryRow(index=n, peak_bytes=(300 if n < 2 else 900) << 20) for n in range(4))
    memory = Memory(
        rows=rows,
        rows_of="process",
        peak_process_bytes=900 << 20,
        traced_process_bytes=700 << 20,
        kept_process_bytes=600 << 20,
    )
    report = msgspec.structs.replace(SAMPLES["lengths_only"](), memory=memory)
    shown = memory_view(report)
    assert shown.title == "Steps peak at 900 MiB, up to 600 MiB of it kept from recording the trace"
    assert ("Memory for recording", "up to 700 MiB") in [(fact.label, fact.value) for fact in shown.facts]
    notes = {fact.label: fact.note for fact in tiles_of(report)}
    assert notes["Peak memory"] == "of the process; up to 600 MiB kept from recording"


def test_what_was_alive_is_told_with_its_share_of_the_peak_and_what_is_older():
    table = memory_view(SAMPLES["input_bound"]()).alive
    assert table.columns == ("Operator", "Module", "Blocks", "Size", "Share")
    assert table.rows[0] == ("aten::convolution", "Conv2d_3", "53", "21.0 GiB", "36 %")
    assert table.rows[2][:2] == ("not known", "not known")
    assert "25.0 GiB more are older than the recording" in table.caption


def test_without_modules_there_is_no_column_for_them():
    alive = (AliveAtPeak(op="aten::mm", module=None, count=1, bytes=5),)
    assert told(peak_allocated_bytes=10, alive=alive).alive.columns == ("Operator", "Blocks", "Size", "Share")


def test_the_figure_has_a_table_twin_and_every_renderer_tells_the_finding():
    report = SAMPLES["input_bound"]()
    title = view.build(report).memory.title
    page = html.render(report, explorer=False)
    assert 'aria-labelledby="memory-title"' in page
    assert "The memory of the steps as a table" in page
    assert title in spaces(page)
    assert f"Memory: {title}" in terminal.render(report, width=200)
    assert "- Fragmentation: 12 %" in markdown.render(msgspec.structs.replace(report, outcomes=()))


def test_slow_steps_and_warm_up_are_told_under_the_figure_of_steps():
    report = SAMPLES["input_bound"]()

    slow = SlowSteps(
        count=1,
        excess_ns=93_000_000,
        share=0.01,
        part="input.prep",
        part_excess_ns=90,
        coverage=0.95,
        first=27,
        last=27,
    )
    steps = msgspec.structs.replace(
        report.steps, slow=slow, warmup=Warmup(steps=2, time_ns=1_000_000_000, excess_ns=900_000_000, cause="compiling")
    )
    caption = view.build(msgspec.structs.replace(report, steps=steps)).steps.caption
    assert "Slow step 27 is 93.0 ms longer than the others: 95 % of that is waiting for data: preparing" in caption
    assert "2 steps of warm-up took 1.00 s, 900 ms more than steady ones: compiling." in caption
    far = msgspec.structs.replace(report.steps, slow=msgspec.structs.replace(slow, ratio=3.0))
    assert "Slow step 27 is 93.0 ms longer" in view.build(msgspec.structs.replace(report, steps=far)).steps.caption
    many = msgspec.structs.replace(slow, count=12, period=10, part=None, coverage=None)
    steps = msgspec.structs.replace(
        report.steps, slow=many, warmup=Warmup(steps=2, time_ns=2 * report.steps.time_ns.median, excess_ns=0)
    )
    caption = view.build(msgspec.structs.replace(report, steps=steps)).steps.caption
    assert "12 slow steps are 93.0 ms longer than the others, every 10 steps: no recorded part" in caption
    assert "warm-up took" not in caption
    steps = msgspec.structs.replace(report.steps, slow=msgspec.structs.replace(many, ratio=3.0))
    caption = view.build(msgspec.structs.replace(report, steps=steps)).steps.caption
    assert "12 steps, above 3 × the median, are 93.0 ms longer than the others, every 10 steps" in caption


def test_growth_over_few_steps_is_told_as_what_was_seen():
    grown = SAMPLES["input_bound"]().memory.growth[0]
    few = msgspec.structs.replace(grown, last_step=grown.first_step + 48, n=49)
    rows = memory_rows(49)
    assert told(rows=rows, rows_of=grown.of, growth=(grown,)).title == "Memory grows by 20.0 MiB in every step"
    assert told(rows=rows, rows_of=grown.of, growth=(few,)).title == "Memory grew by 20.0 MiB a step over 49 steps"
