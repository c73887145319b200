"""``profilerkit analyze PATH --show E3``: from a number in the report back to its raw events."""

import json
import re

import pytest

from profilerkit import api
from profilerkit.cli import main
from profilerkit.model.finding import in_order
from tests.recipes import WORKERS, Log, training, write_run


@pytest.fixture
def trace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return training(8, fetch=3_000).write(tmp_path / "trace.json")


def shown(capsys, *arguments):
    assert main(["analyze", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_the_number_of_the_report_leads_to_the_events_of_the_trace(trace, capsys):
    _, finding = in_order(api.analyze(trace).outcomes)[0]
    entry = next(entry for entry in finding.evidence if entry.label.startswith("Input wait,"))
    text = shown(capsys, "trace.json", "--show", entry.id)
    assert text.startswith(f"{entry.id}  {entry.label}: 7")
    assert re.search(r"^ +2 +\d+ +3.00 ms  thread 100", text, re.MULTILINE)
    assert WORKERS[:20] in text
    assert max(map(len, text.splitlines())) <= 80
    assert [path.name for path in trace.parent.iterdir()] == ["trace.json"]


def test_numbers_follow_the_order_in_which_the_report_shows_them(trace):
    report = api.analyze(trace)
    numbers = [entry.id for _, finding in in_order(report.outcomes) for entry in finding.evidence]
    assert len(numbers) > 3
    assert numbers == [f"E{number}" for number in range(1, len(numbers) + 1)]
    assert f'"id": "{numbers[-1]}"' in report.to_json()
    assert f'id="{numbers[-1]}"' in report.to_html()


def test_a_run_directory_shows_the_records_of_its_timers(tmp_path, capsys):
    log = Log().steps(40, 10_000, wait=5_000, wait_cpu=4_900)
    write_run(tmp_path / "run", [log])
    text = shown(capsys, tmp_path / "run", "--show", "E1")
    assert "rank_00000/events.bin: the 20 longest of 39" in " ".join(text.split())
    assert len(re.findall(r"^ *\d+ +.+ 5.00 ms  wait for a batch$", text, re.MULTILINE)) == 20


def test_the_rank_of_a_number_is_the_one_whose_events_are_shown(tmp_path, capsys):
    quick, slow = Log().steps(40, 10_000, wait=100), Log().steps(40, 10_000, wait=6_000)
    write_run(tmp_path / "run", [quick, slow])
    report = api.analyze(tmp_path / "run")
    entry = next(e for _, f in in_order(report.outcomes) for e in f.evidence if e.rank == 1 and e.behind)
    assert "rank_00001/" in shown(capsys, tmp_path / "run", "--show", entry.id)


def test_every_number_of_a_report_can_be_shown(trace, capsys):
    for _, finding in in_order(api.analyze(trace).outcomes):
        for entry in finding.evidence:
            text = shown(capsys, trace, "--show", entry.id)
            assert text.startswith(f"{entry.id}  ")
            assert "trace.json" in text


def test_a_saved_report_has_the_row_and_says_where_the_events_are(trace, capsys):
    api.analyze(trace).to_json("kept.json")
    said = " ".join(shown(capsys, "kept.json", "--show", "E1").split())
    assert said.startswith("E1 ")
    assert said.endswith("Name the run directory or the trace instead.")


def test_an_unknown_number_is_bad_usage(trace, capsys):
    assert main(["analyze", "trace.json", "--show", "E999"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: there is no evidence E999\n")
    assert re.search(r"^cause: the report has E1 to E\d+$", error, re.MULTILINE)


@pytest.mark.parametrize("other", [["-o", "x.html"], ["-f", "json"], ["--open"], ["--brief"], ["--fail-on", "high"]])
def test_what_is_about_the_report_does_not_go_with_one_number(trace, capsys, other):
    assert main(["analyze", "trace.json", "--show", "E1", *other]) == 2
    assert "--show" in capsys.readouterr().err
    assert [path.name for path in trace.parent.iterdir()] == ["trace.json"]


def test_hostile_names_of_a_trace_stay_text(tmp_path, capsys):
    name = "enumerate(DataLoader)#\x1b[31m\u202e</script>.__next__"
    path = training(8, fetch=3_000, loader=name).write(tmp_path / "trace.json")
    text = shown(capsys, path, "--show", "E1")
    assert "\\x1b[31m" in text.replace("\n", "").replace(" ", "")
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_the_json_says_what_each_number_was_computed_from(trace):
    document = json.loads(api.analyze(trace).to_json())
    behind = [e["behind"] for o in document["outcomes"] for f in o["findings"] for e in f["evidence"]]
    assert ["input.wait"] in behind
