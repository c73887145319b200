"""The sampled signals as strips on the time axis of the steps."""

import time

import pytest

import profilerkit
from profilerkit.model import revise
from profilerkit.model.run import DEVICE_STRIPS, HOST_STRIPS, Series, Strip
from profilerkit.report import html
from profilerkit.report.sample_charts import sampled_strips
from tests.report.samples import HOSTILE, MS, SAMPLES, step_rows, steps_of

S = 1_000 * MS
UNITS = {"gpu.sm_clock": "MHz", "gpu.power": "mW", "gpu.temperature": "°C", "host.process_memory": "bytes"}


def signal(name, values, *, at_s=None, n=None, mean=None, **fields):
    """A series with a point per second, from the start of the first step on."""
    at_s = range(len(values)) if at_s is None else at_s
    strip = Strip(at_ns=tuple(round(at * S) for at in at_s), values=tuple(map(float, values)))
    shown = {"unit": UNITS.get(name, "ratio"), "p10": 0.0, "p90": 0.0, "maximum": max(values), "rank": 0, **fields}
    return Series(
        name=name, n=n or len(values), mean=sum(values) / len(values) if mean is None else mean, strip=strip, **shown
    )


def with_samples(*series, steps=80, warmup=0, of="input_bound"):
    """A report of even steps of half a second with these signals."""
    rows = step_rows({"compute.math": (500 * MS, "measured")}, steps, warmup=warmup, slow=())
    start = rows[0].start_ns
    rows = tuple(revise(row, start_ns=start + place * 500 * MS, time_ns=500 * MS) for place, row in enumerate(rows))
    report = SAMPLES[of]()
    return revise(report, steps=steps_of(rows), run=revise(report.run, samples=series))


def title(*series, **fields):
    return sampled_strips(with_samples(*series, **fields)).title


def test_what_holds_another_device_down_is_not_told_of_the_drawn_one():
    clock = signal("gpu.sm_clock", [1980] * 40)
    other = Series(name="gpu.power_throttle", unit="ratio", n=40, mean=0.5, p10=0, p90=1, maximum=1, rank=1)
    assert "held" not in title(clock, other)
    assert "held" not in title(clock, revise(other, rank=0, device="1 NVIDIA L4"))
    assert "the power limit held" in title(clock, revise(other, rank=0)).lower()


def test_the_title_says_how_busy_the_device_is_and_its_clock():
    busy = signal("gpu.utilization", [0.9] * 40)
    assert title(busy, signal("gpu.sm_clock", [1980] * 20 + [1900] * 20)) == (
        "A kernel runs 90 % of the time; the SM clock stays between 1,900 MHz and 1,980 MHz"
    )


def test_the_title_is_about_the_steady_window():
    busy = signal("gpu.utilization", [0.0] * 5 + [1.0] * 35)
    assert "a kernel runs 88 %" in title(busy).lower()
    report = with_samples(busy, warmup=10)
    chart = sampled_strips(report)
    assert chart.title.startswith("A kernel runs 100 % of the time")
    assert "steady window, 5 s to 40 s." in chart.caption


def test_a_window_without_a_sample_is_not_what_the_title_is_about():
    late = signal("gpu.utilization", [0.5] * 40, at_s=range(60, 100))
    caption = sampled_strips(with_samples(late)).caption
    assert "No sample is in the steady window, 0 s to 40 s: the title and the means cover all samples." in caption
    both = sampled_strips(with_samples(late, signal("gpu.power", [9e4] * 40))).caption
    assert "the steady window, 0 s to 40 s; all samples for A kernel runs." in both


def test_without_a_device_the_host_is_drawn():
    cpu, queue = signal("host.cpu", [0.5] * 40), signal("host.thread_queue", [0.001] * 40)
    memory = signal("host.process_memory", [2**30] * 40)
    assert title(cpu, queue, memory) == (
        "The host's processors are 50 % busy; the training thread hardly waits for a core, 0.1 % of the time"
    )
    waits = signal("host.thread_queue", [0.14] * 40)
    assert title(cpu, waits).startswith("The training thread waits for a core 14 % of the time; the host's")
    grown = signal("host.process_memory", [2**30 + second * 2**25 for second in range(40)])
    assert "; the process grew from 1.20 GiB to 2.02 GiB" in title(cpu, grown)
    chart = sampled_strips(with_samples(cpu, signal("gpu.power", [90_000] * 40)))
    assert chart.table.columns == ("Time", "Power")


def test_what_was_not_sampled_is_said_and_never_zero():
    chart = sampled_strips(with_samples(signal("gpu.utilization", [0.5] * 40), signal("gpu.power", [9e4] * 5)))
    assert "Not measured: SM clock and Temperature." in chart.caption
    assert [row[2] for row in chart.table.rows][-1] == "not measured"


def test_what_was_sampled_too_seldom_to_draw_is_not_called_unmeasured():
    chart = sampled_strips(with_samples(signal("gpu.utilization", [0.5] * 40), signal("gpu.power", [9e4] * 4)))
    assert "Too few samples to draw: Power. Not measured: SM clock and Temperature." in chart.caption
    assert "Too few" not in sampled_strips(with_samples(signal("gpu.utilization", [0.5] * 40))).caption


def test_too_few_points_or_no_steps_are_no_figure():
    assert sampled_strips(with_samples(signal("host.cpu", [0.5] * 5))) is not None
    assert sampled_strips(with_samples(signal("host.cpu", [0.5] * 4))) is None
    assert sampled_strips(with_samples()) is None
    report = SAMPLES["inconclusive"]()
    assert sampled_strips(revise(report, run=revise(report.run, samples=(signal("host.cpu", [0.5] * 9),)))) is None
    uneven = revise(signal("host.cpu", [0.5] * 9), strip=Strip(at_ns=(1, 2), values=(1.0,) * 9))
    assert sampled_strips(with_samples(uneven)) is None


def test_no_line_is_drawn_over_time_in_which_nothing_was_sampled():
    (line,) = [s for s in sampled_strips(with_samples(signal("host.cpu", [0.5] * 40))).shapes if s.form == "line"]
    assert line.path.count("M") == 1
    torn = signal("host.cpu", [0.5] * 40, at_s=[*range(20), *range(24, 44)])
    (line,) = [s for s in sampled_strips(with_samples(torn)).shapes if s.form == "line"]
    assert line.path.count("M") == 2


def test_the_table_has_the_points_and_says_how_many_it_leaves_out():
    chart = sampled_strips(with_samples(signal("host.cpu", [second / 40 for second in range(40)], n=120)))
    assert chart.table.rows[1] == ("2 s", "5.0 %")
    assert len(chart.table.rows) == 20
    assert chart.table.more == "One of every 2 points. The JSON has all of them."
    assert "120 samples, measured" in chart.caption
    assert "Each point is the mean of 3 samples, derived." in chart.caption


def test_samples_before_the_first_step_and_after_the_last_lie_on_the_axis():
    early = signal("host.cpu", [0.5] * 70, at_s=range(-20, 50))
    chart = sampled_strips(with_samples(early, warmup=10))
    assert [tick.label for tick in chart.x.ticks] == ["−20 s", "0 s", "20 s", "40 s"]
    steady, first, last = chart.shapes[:3]
    assert chart.legend == ((steady.colour, steady.title),)
    assert steady.path == "M36.23 0H86.96V100H36.23z"
    assert (first.path, last.path) == ("M28.99 31.58L28.99 100", "M86.96 31.58L86.96 100")


def test_the_judged_rank_is_named():
    report = SAMPLES["multi_rank"]()
    many = revise(with_samples(signal("host.cpu", [0.5] * 9)), ranks=report.ranks, breakdown=report.breakdown)
    many = revise(many, run=revise(many.run, world_size=len(report.ranks)))
    assert ", the judged one." in sampled_strips(many).caption


@pytest.mark.parametrize("name", [*DEVICE_STRIPS, *HOST_STRIPS])
def test_a_hostile_unit_is_text(name):
    report = with_samples(signal(name, [0.0] * 3 + [1e300, -5.0], unit=HOSTILE))
    page = html.render(report)
    assert 'id="sampled-strips"' in page
    assert "<script>alert" not in page
    assert "<img" not in page
    assert "\x1b" not in page


def test_a_real_run_has_strips_under_its_own_steps(tmp_path, monkeypatch):
    monkeypatch.setattr("profilerkit.capture.background.SAMPLE_SECONDS", 0.1)
    with profilerkit.profile(tmp_path / "run", deep=False, nvml=False, analyze=False) as prof:
        for _ in prof.wrap(range(30)):
            time.sleep(0.03)
    report = profilerkit.analyze(tmp_path / "run")
    strips = {series.name: series.strip for series in report.run.samples if series.strip}
    assert {"host.cpu", "host.process_memory"} <= set(strips) <= set(HOST_STRIPS)
    last = report.steps.rows[-1]
    end = last.start_ns + last.time_ns - report.steps.rows[0].start_ns
    inside = [at for at in strips["host.process_memory"].at_ns if 0 <= at <= end]
    assert len(inside) >= 3
    assert strips["host.process_memory"].at_ns[-1] >= end - S
    chart = sampled_strips(report)
    assert chart.title.startswith(("The host's processors are", "The training thread waits"))
    assert 'id="sampled-strips"' in html.render(report)
