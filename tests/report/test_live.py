"""The page of a running job: what stands there, in which width and characters."""

import re

import pytest
from rich.cells import cell_len

from profilerkit.analysis.live import Late, Live, LiveRank, Recent
from profilerkit.model import revise
from profilerkit.report.live import FEWEST_JUDGED, line, page
from profilerkit.rundir.sampled import GpuSample, HostSample
from tests.report.samples import SAMPLES, hostile

MS = 1_000_000
DEVICE = GpuSample(
    utilization_ratio=0.87,
    power_mw=312_000,
    power_limit_mw=400_000,
    sm_clock_mhz=1_755,
    sm_clock_max_mhz=1_980,
    temperature_c=61,
    memory_used_bytes=34 << 30,
    memory_total_bytes=80 << 30,
)
HOST = HostSample(
    cpu_ratio=0.45,
    running_tasks=12,
    thread_queue_ratio=0.031,
    memory_used_bytes=11 << 30,
    memory_total_bytes=62 << 30,
    process_rss_bytes=2 << 30,
)
RECENT = Recent(
    rank=0,
    steps=170,
    rate_per_s=5.68,
    median_ns=176 * MS,
    p10_ns=170 * MS,
    p90_ns=188 * MS,
    trend=(176 * MS,) * 12 + (190 * MS,) * 6 + (240 * MS,) * 6,
    trend_steps=404,
)


def rank(number=0, **changes):
    base = LiveRank(
        rank=number, host="node0", steps=412, wait_ns=38_100_000, wait_ratio=0.22, device=DEVICE, hosted=HOST
    )
    return revise(base, **changes)


def job(*ranks, **changes):
    base = Live(
        world_size=max(len(ranks), 1),
        ranks=ranks or (rank(),),
        running_ns=192_000 * MS,
        quiet_ns=50 * MS,
        recent=RECENT,
        late=(),
        window=None,
        is_over=False,
    )
    return revise(base, **changes)


def words(live, report=None, **how):
    return " ".join(page("runs/x", live, report, **how).split())


def report(name="input_bound", steady=404):
    found = SAMPLES[name]()
    return revise(found, steps=revise(found.steps, steady=steady))


EVERYTHING = job(
    rank(),
    rank(1, wait_ns=None, wait_ratio=None, device=None, no_device="no driver " * 20),
    rank(2, wait_ns=90 * MS, wait_ratio=0.5, device=revise(DEVICE, utilization_ratio=0.2, power_mw=90_000)),
    world_size=8,
    quiet_ns=60_000 * MS,
    late=(Late(rank=2, kind="timers", excess_ns=50 * MS), Late(rank=1, kind="behind", steps=70)),
)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("name", [None, *SAMPLES])
def test_no_line_is_wider_than_asked(name, width):
    shown = page("runs/x", EVERYTHING, SAMPLES[name]() if name else None, width=width)
    assert max(map(cell_len, shown.splitlines())) <= width


@pytest.mark.parametrize("name", [None, *SAMPLES])
def test_ascii_only_means_ascii(name):
    shown = page("runs/x", EVERYTHING, SAMPLES[name]() if name else None, ascii_only=True)
    assert all(char == "\n" or (char.isascii() and char.isprintable()) for char in shown)
    if not (name or "").startswith("hostile"):
        assert "?" not in shown.replace("? INCONCLUSIVE", "").replace("? NO VERDICT", "")
    assert line(EVERYTHING, None, ascii_only=True).isascii()


def test_colour_changes_no_character():
    coloured = page("runs/x", EVERYTHING, report(), colour=True)
    plain = page("runs/x", EVERYTHING, report())
    assert "\x1b[" in coloured
    assert "\x1b" not in plain
    stripped = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [text.rstrip() for text in stripped.splitlines()] == plain.splitlines()


def test_everything_a_watcher_needs_is_there():
    shown = words(job(), report(), width=120)
    for piece in (
        "runs/x · running for 3.2 min · 1 rank",
        "▲ INPUT-BOUND · preparing samples · confidence high · so far",
        "The GPU waits 38 ms of every 176 ms step for data",
        "After 412 steps, the latest 404 judged, by the timers alone.",
        "Step 412 · 5.68 steps/s",
        "Step time 176 ms median · p10–p90 170–188 ms · last 170 steps",
        "Input wait 38.1 ms of each step · 22 %",
        "Device busy 87 % · 312 of 400 W · 1,755 of 1,980 MHz · 61.0 °C · 34.0 of 80.0 GiB",
        "Host CPU 45 % · 12 threads run or wait · training thread waits 3.1 % for a core · 11.0 of 62.0 GiB",
        "process 2.00 GiB",
        "Where the step goes",
        "Input wait: preparing samples",
    ):
        assert piece in shown


def test_of_several_ranks_the_least_and_the_most_are_told():
    shown = words(EVERYTHING, report(), width=120)
    assert "3 of 8 ranks" in shown
    assert "Input wait 38.1–90.0 ms of each step · 22–50 % · most on rank 2" in shown
    assert "busy 20–87 % · 90.0–312 of 400 W" in shown
    assert "CPU 45 % · 12 threads" in shown
    assert "Rank 2: 50.0 ms more per step than the median rank in waits for data" in shown
    assert "Rank 1: lags by 70 steps." in shown
    assert "No step for 60 s." in shown


@pytest.mark.parametrize("steady", [0, 1, FEWEST_JUDGED - 1])
def test_too_few_steps_give_no_verdict(steady):
    shown = words(job(), report(steady=steady))
    assert f"NO VERDICT YET · {steady} of the {FEWEST_JUDGED} steps it needs" in shown
    assert "INPUT-BOUND" not in shown
    assert "no verdict yet" in line(job(), report(steady=steady))


def test_enough_steps_give_one():
    assert "INPUT-BOUND" in words(job(), report(steady=FEWEST_JUDGED))
    assert "input-bound (high) so far" in line(job(), report(steady=FEWEST_JUDGED))


@pytest.mark.parametrize(
    ("window", "told"),
    [(None, "there is none yet"), ((6, 15), "The trace of steps 6 to 15 shows more: profilerkit analyze runs/x")],
)
def test_where_the_timers_cannot_tell_what_would_is_named(window, told):
    assert told in words(job(window=window), report("inconclusive"))


def test_what_was_not_measured_says_so_and_why():
    bare = rank(wait_ns=None, wait_ratio=None, device=None, hosted=None, no_device="no NVIDIA driver", no_host="")
    shown = words(job(bare))
    assert "Input wait not measured: no loader was seen" in shown
    assert "Device not measured: no NVIDIA driver" in shown
    assert "Host not measured" in shown
    assert "GPU" not in line(job(bare), None)


def test_before_the_first_step():
    shown = words(job(rank(steps=0), recent=None, quiet_ns=None))
    assert "Step none recorded yet" in shown
    assert line(job(rank(steps=0), recent=None, quiet_ns=None), None) == "no step recorded yet · input 22 % · GPU 87 %"


@pytest.mark.parametrize(("quiet_s", "told"), [(4.9, False), (5.0, True)])
def test_a_step_that_takes_long_is_told(quiet_s, told):
    live = job(quiet_ns=round(quiet_s * 1e9))
    assert ("no step for" in words(live).lower()) == told
    assert ("no step for" in line(live, None)) == told


def test_a_run_that_is_over_says_how_it_ended():
    found = report()
    found = revise(found, run=revise(found.run, ended="killed", failure="The run was killed: it left no word."))
    shown = words(job(is_over=True, quiet_ns=None), found)
    assert "runs/x · ended: killed, ran for 3.2 min" in shown
    assert "The run was killed: it left no word." in shown
    assert "so far" not in shown


@pytest.mark.parametrize(("age_s", "told"), [(0.9, ""), (12.0, " 12 s ago"), (150.0, " 2.5 min ago")])
def test_a_verdict_says_how_old_it_is(age_s, told):
    live = job(verdict_age_ns=round(age_s * 1e9))
    assert f"the latest 404 judged{told}, by the timers alone" in words(live, report())
    assert line(live, report()).endswith(f"input-bound (high) so far{told and f', judged{told}'}")


@pytest.mark.parametrize(("silent_s", "told"), [(119.9, False), (120.0, True)])
def test_a_job_that_cannot_be_asked_and_writes_nothing_may_be_gone(silent_s, told):
    live = job(silent_ns=round(silent_s * 1e9), quiet_ns=round(silent_s * 1e9))
    shown = words(live, report())
    assert ("No record for 2 min; the run may have stopped." in shown) == told
    assert ("no record for 2 min; the run may have stopped" in line(live, report())) == told
    assert ("runs/x · silent, after running for 72 s" in shown) == told
    assert ("runs/x · running for 3.2 min" in shown) == (not told)
    assert ("no step for" in shown.lower()) == (not told)


def test_where_the_latest_records_hold_no_step_those_before_are_not_forgotten():
    live = job(recent=None, quiet_ns=None)
    assert "Step 412 · no step time in the latest records" in words(live)
    assert line(live, None).startswith("step 412 · ")


@pytest.mark.parametrize("window", [None, (6, 15)])
def test_of_a_run_that_is_over_nothing_is_said_to_be_still_to_come(window):
    shown = words(job(is_over=True, quiet_ns=None, window=window), report("inconclusive"))
    assert "yet" not in shown
    assert "profilerkit analyze" not in shown
    few = words(job(is_over=True, quiet_ns=None), report(steady=3))
    assert "NO VERDICT · 3 of the 10 steps" in few


@pytest.mark.parametrize(
    ("trend", "shown"),
    [
        ((100,) * 4, "▅▅▅▅"),
        ((100, 101, 99, 100), "▅▅▄▅"),
        ((100, 100, 100, 300), "▂▂▂█"),
        ((0, 0), "▁▁"),
    ],
)
def test_noise_does_not_look_like_a_trend(trend, shown):
    text = page("x", job(recent=revise(RECENT, trend=trend)), None)
    assert f"Trend       {shown} ·" in text


def test_hostile_names_stand_as_text():
    bare = rank(device=None, no_device="\x1b[31m\u202e driver")
    text = page("runs/\x1b[2J[red]x[/red]", job(bare), hostile(), colour=True)
    assert "\x1b[2J" not in text
    assert "\x1b[31m\u202e" not in text
    assert "[red]x[/red]" in text
