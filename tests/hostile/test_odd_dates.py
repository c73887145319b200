"""Odd dates and absurd sizes are read, left out with a note, or refused in three parts; nothing fails within."""

import json
import os
import random
from contextlib import suppress

import pytest

from profilerkit.api import analyze
from profilerkit.cli import main
from profilerkit.cli.outputs import shared_stem
from profilerkit.errors import UnreadableInputError
from profilerkit.formats.smi_columns import time_ns
from tests.recipes import training

HEAD = "timestamp, index, utilization.gpu [%], memory.used [MiB], power.draw [W], clocks.sm [MHz]"
ODD = [
    "0001/01/01 00:00:00.000",
    "9999/12/31 23:59:59.999",
    "9999/12/31 23:59:59-23:00",
    "0001/01/01 00:00:00+23:59",
    "1969/12/31 23:59:59",
    "2262/04/12 00:00:00",
    "9999999999",
    "9999999999999999999",
    "1e400",
    "nan",
    "-1e18",
    "2024/02/30 00:00:00",
]
GOOD = "2024/01/01 00:00:{:02}"
SIZES = ["99999999999999 MiB", "1e300", "-5", "999999999999999 W", "999999999999999.999 GHz", "0", "[N/A]", "1 %"]


def log(path, stamps, cells=("50 %", "4000 MiB", "300 W", "1400 MHz")):
    path.write_text("\n".join([HEAD, *(", ".join([stamp, "0", *cells]) for stamp in stamps)]) + "\n")
    return path


def rendered(report):
    return report.to_html(), report.to_markdown(), json.loads(report.to_json())


def rendered_or_refused(path):
    with suppress(UnreadableInputError):
        rendered(analyze(path))


@pytest.mark.parametrize("stamp", ODD)
def test_a_log_of_odd_dates_is_read_without_them_and_says_so(tmp_path, stamp):
    report = analyze(log(tmp_path / "gpu.csv", [stamp] * 5))
    assert f"The log's times are not used: '{stamp}' is no year-first time of 1970 to 2116." in report.trust.notes
    rendered(report)


@pytest.mark.parametrize("stamp", ODD)
def test_one_odd_date_costs_its_line_alone(tmp_path, stamp):
    report = analyze(log(tmp_path / "gpu.csv", [*map(GOOD.format, range(9)), stamp]))
    assert "1 of the log's lines cannot be read and were left out." in " ".join(report.trust.notes)
    rendered(report)


def test_dates_that_a_clock_can_say_are_times():
    assert time_ns("1970/01/01 00:00:00") == (0, False)
    assert time_ns("2116/01/01 00:00:00+00:00") == (4_607_280_000 * 10**9, True)
    assert time_ns("2117/01/01 00:00:00") is None


@pytest.mark.parametrize("seed", range(20))
def test_absurd_sizes_of_a_log_are_reported_or_refused(tmp_path, seed):
    drawn = random.Random(seed)
    stamps = [drawn.choice([drawn.choice(ODD), GOOD.format(second)]) for second in range(20)]
    rendered_or_refused(log(tmp_path / "gpu.csv", stamps, [drawn.choice(SIZES) for _ in range(4)]))


@pytest.mark.parametrize("seed", range(20))
def test_absurd_numbers_of_a_trace_are_reported_or_refused(tmp_path, seed):
    drawn = random.Random(seed)
    document = json.loads(training(5, fetch=300).write(tmp_path / "t.json").read_text())
    for event in drawn.sample(document["traceEvents"], 5):
        event[drawn.choice(["ts", "dur", "pid", "tid"])] = drawn.choice(
            [1e300, -1e300, 1 << 63, 1 << 70, -1, 0.1, None]
        )
    (tmp_path / "t.json").write_text(json.dumps(document))
    rendered_or_refused(tmp_path / "t.json")


@pytest.mark.parametrize("seconds", [-(1 << 40), -1, 0, 1 << 33, 1 << 40])
def test_a_report_is_named_by_a_date_whatever_the_file_system_says(tmp_path, seconds):
    path = training(5).write(tmp_path / "t.json")
    try:
        os.utime(path, (seconds, seconds))
    except OSError:
        pytest.skip("this file system holds no such time")
    assert shared_stem(path).startswith("t.")


@pytest.mark.parametrize("created", [-(1 << 70), -1, 1 << 62, 1 << 80, 10**400])
def test_a_report_is_named_by_a_date_whatever_the_run_says(tmp_path, created):
    manifest = {"format_version": 1, "profilerkit_version": "0", "created_unix_ns": 0, "argv": [], "world_size": 1}
    text = json.dumps({**manifest, "versions": {}, "settings": {}, "environment": {}})
    path = tmp_path / "run.json"
    path.write_text(text)
    os.utime(path, (10**9, 10**9))
    assert ".19700101-0000." in shared_stem(tmp_path)
    path.write_text(text.replace('"created_unix_ns": 0', f'"created_unix_ns": {created}'))
    assert shared_stem(tmp_path).count(".") >= 2


@pytest.mark.parametrize(
    "words",
    [
        ("analyze", "gpu.csv", "--gpu-hour-price", "1e400"),
        ("analyze", "t.json", "--rank", "99999999999999999999"),
        ("check", "t.json", "--budget", "step_time=1e400ms"),
        ("check", "t.json", "--budget", "peak_memory=1e300GiB"),
        ("diff", "t.json", "gpu.csv", "--fail-if", "step_time:+1e400%"),
        ("map", "t.json", "--shard", "1/0"),
        ("map", "t.json", "--workers", "-99999999999999999999"),
        ("watch", "t.json", "--every", "1e400"),
    ],
)
def test_an_absurd_number_on_the_command_line_is_an_error_in_three_parts(tmp_path, monkeypatch, capsys, words):
    training(5).write(tmp_path / "t.json")
    log(tmp_path / "gpu.csv", [GOOD.format(1)])
    monkeypatch.chdir(tmp_path)
    assert main([*words]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("error: ")
    assert "internal error" not in lines[0]
    assert lines[-1].startswith("hint:")


def test_years_1_and_9999_of_a_suppression_are_days(tmp_path, monkeypatch, capsys):
    training(5).write(tmp_path / "t.json")
    monkeypatch.chdir(tmp_path)
    for day in ("0001-01-01", "9999-12-31"):
        (tmp_path / "pyproject.toml").write_text(
            f'[[tool.profilerkit.suppress]]\nrule = "IN001"\nreason = "known"\nuntil = {day}\n'
        )
        assert main(["analyze", "t.json", "-q"]) == 0, capsys.readouterr().err
