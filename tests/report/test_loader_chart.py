"""The histograms of the wait for data and of the rest of a step."""

import time

import pytest

import profilerkit
from profilerkit.model import revise
from profilerkit.model.run import Loader
from profilerkit.report import html, sections
from profilerkit.report.blocks import Chart
from profilerkit.report.step_charts import loader_wait
from tests.recipes import made
from tests.report.samples import MS, SAMPLES, parts, step_rows, steps_of


def with_rows(times, *, steady=30, of="input_bound", **fields):
    """A report whose steps are alike: each part of ``times`` takes so many ns in each."""
    rows = step_rows({name: (value, "measured") for name, value in times.items()}, steady, warmup=0, slow=())
    return revise(SAMPLES[of](), steps=steps_of(rows), breakdown=parts({"input.wait": (5, "measured")}), **fields)


def waiting(waits_ms, rest_ms=10, **fields):
    """A timed run whose steps wait so many ms each, without what names a loader."""
    report = with_rows({"input.wait": 1}, steady=len(waits_ms))
    rows = tuple(
        revise(row, time_ns=(wait + rest_ms) * MS, parts={"input.wait": wait * MS} if wait else {})
        for row, wait in zip(report.steps.rows, waits_ms, strict=True)
    )
    return revise(report, steps=steps_of(rows), run=revise(report.run, loader=None, devices=()), **fields)


def cells(chart):
    """Steps by wait and by rest, summed over the table."""
    return tuple(sum(int(row[column].replace(",", "")) for row in chart.table.rows) for column in (1, 2))


def test_the_title_says_how_many_steps_wait_and_how_long():
    chart = loader_wait(waiting([9] * 15 + [0] * 5))
    assert chart.title == (
        "The loop waits for data in 75 % of the steps, 9.00 ms in their median; the rest of a step takes 10.0 ms"
    )
    assert cells(chart) == (20, 20)
    assert "measured in the training loop" in chart.caption


def test_waits_that_are_a_small_share_are_said_to_be():
    report = waiting([1] * 20, rest_ms=99)
    assert loader_wait(report).title.startswith("The loop hardly waits for data: at most 1.0 % of a step, 1.00 ms")
    assert "hardly" in loader_wait(waiting([49] * 20, rest_ms=951)).title
    assert "in every step" in loader_wait(waiting([50] * 20, rest_ms=950)).title


def test_data_made_in_the_loop_is_told_in_rests_of_a_step():
    report = waiting([16] * 20)
    report = revise(report, run=revise(report.run, loader=Loader(kind="DataLoader", num_workers=0)))
    assert loader_wait(report).title.endswith("making the data of a step takes 1.6 times as long as the rest of a step")


def test_workers_are_told_by_what_they_make_together():
    title = loader_wait(waiting([10] * 20, workers=made(40 * MS, count=2))).title
    assert title.endswith("2 workers make the data of a step in 20.0 ms; the rest of a step takes 10.0 ms")


def test_few_steps_or_none_that_waits_are_no_figure():
    assert loader_wait(waiting([9] * 10)) is not None
    assert loader_wait(waiting([9] * 9)) is None
    assert loader_wait(waiting([0] * 20)) is None
    for name in ("inconclusive", "empty", "lengths_only"):
        assert loader_wait(SAMPLES[name]()) is None


def test_times_beyond_the_scale_stand_in_the_last_bin():
    chart = loader_wait(waiting([10] * 19 + [900]))
    assert cells(chart) == (20, 20)
    assert chart.table.rows[-1][0].endswith(" to 900 ms")
    assert "The last bar also holds 1 longer step." in chart.caption


def test_a_trace_of_a_device_tells_the_devices_wait():
    chart = loader_wait(with_rows({"input.wait": 9 * MS, "compute.math": 10 * MS}))
    assert chart.title.startswith("The GPU waits for data in every step, ")
    assert "measured from the trace" in chart.caption


def test_the_copy_of_a_batch_is_no_wait():
    assert loader_wait(with_rows({"input.h2d": 9 * MS, "compute.math": 10 * MS})) is None


@pytest.mark.parametrize("time_ns", [0, -5 * MS])
def test_a_step_without_a_length_is_left_out(time_ns):
    report = waiting([9] * 20)
    rows = (*report.steps.rows[:-1], revise(report.steps.rows[-1], time_ns=time_ns))
    assert cells(loader_wait(revise(report, steps=revise(report.steps, rows=rows)))) == (19, 19)


@pytest.mark.parametrize("name", SAMPLES)
def test_what_is_drawn_lies_in_the_box(name):
    section = sections.steps.section(SAMPLES[name]())
    for chart in (block for block in section.blocks if isinstance(block, Chart)):
        assert len(chart.legend) <= 7
        for tick in (*chart.x.ticks, *chart.y.ticks):
            assert 0 <= tick.at <= 100


def test_a_loop_with_a_slow_loader_is_told_from_one_without(tmp_path):
    def batches(pause):
        for number in range(20):
            time.sleep(pause)
            yield number

    titles = []
    for name, prepare, compute in (("slow", 0.02, 0.002), ("quick", 0.0, 0.02)):
        with profilerkit.profile(tmp_path / name, deep=False, nvml=False, host=False, analyze=False) as prof:
            for _ in prof.wrap(batches(prepare)):
                time.sleep(compute)
        report = profilerkit.analyze(tmp_path / name)
        titles.append(loader_wait(report).title)
        assert 'id="loader-wait"' in html.render(report)
    assert titles[0].startswith("The loop waits for data in every step, ")
    assert "every step" not in titles[1]
