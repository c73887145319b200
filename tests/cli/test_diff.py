"""``profilerkit diff``: inputs, outputs, gates, exit codes."""

import json
import re
import xml.etree.ElementTree as ElementTree

import pytest

from profilerkit import api
from profilerkit.cli import main
from tests.comparisons import MS, report_of
from tests.recipes import training
from tests.report.pages import Page
from tests.report.samples import input_bound


@pytest.fixture(autouse=True)
def no_github(monkeypatch):
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """Reports of 30 and 33 ms and one of two ranks, as JSON in the working directory."""
    monkeypatch.chdir(tmp_path)
    report_of([30 * MS] * 240, name="before").to_json("before.json")
    report_of([33 * MS] * 240, name="after").to_json("after.json")
    report_of([30 * MS] * 240, name="two", world_size=2).to_json("two.json")
    return tmp_path


def files(directory):
    return sorted(path.name for path in directory.iterdir())


def test_the_comparison_is_printed_and_nothing_is_written(saved, capsys):
    assert main(["diff", "before.json", "after.json"]) == 0
    shown = capsys.readouterr()
    assert "▲ SLOWER" in shown.out
    assert "The step takes 10 % longer: 30.0 ms → 33.0 ms" in shown.out
    assert shown.err == ""
    assert files(saved) == ["after.json", "before.json", "two.json"]


@pytest.mark.parametrize(("gate", "code"), [("step_time:+5%", 1), ("step_time:+15%", 0), ("throughput:-5%", 1)])
def test_a_failed_gate_is_exit_code_one(saved, capsys, gate, code):
    assert main(["diff", "before.json", "after.json", "--fail-if", "input:+3pt", "--fail-if", gate]) == code
    shown = capsys.readouterr()
    assert shown.out.count("FAILED") == code
    assert shown.err == ""


@pytest.mark.parametrize(("options", "code"), [([], 0), (["--strict"], 3), (["--fail-if", "step_time:+5%"], 0)])
def test_what_cannot_be_compared_fails_only_when_strict(saved, capsys, options, code):
    assert main(["diff", "before.json", "two.json", *options]) == code
    shown = capsys.readouterr()
    assert "Not comparable: world size 1 → 2" in shown.out
    assert ("not judged  step_time" in shown.out) == ("--fail-if" in options)


def test_every_format_is_written_where_it_is_asked_for(saved, capsys):
    gate = ["--fail-if", "step_time:+15%"]
    assert main(["diff", "before.json", "after.json", "-f", "html,md,json,text,junit,sarif", *gate]) == 0
    assert "wrote diff.html (" in capsys.readouterr().err
    assert Page((saved / "diff.html").read_text("utf-8")).open == []
    assert (saved / "diff.md").read_text("utf-8").startswith("<!-- profilerkit-diff -->")
    assert json.loads((saved / "diff.json").read_text("utf-8"))["verdict"] == "slower"
    assert "SLOWER" in (saved / "diff.txt").read_text("utf-8")
    assert ElementTree.parse(saved / "diff.xml").getroot().tag == "testsuites"
    alerts = json.loads((saved / "diff.sarif").read_text("utf-8"))["runs"][0]["results"]
    assert [alert["ruleId"] for alert in alerts] == ["slower"]


@pytest.mark.parametrize("options", [[], ["--fail-if", "step_time:+5%"]])
def test_an_empty_sarif_says_that_it_is_and_what_fills_it(saved, capsys, options):
    assert main(["diff", "before.json", "before.json", "-f", "sarif", *options]) == 0
    assert json.loads((saved / "diff.sarif").read_text("utf-8"))["runs"][0]["results"] == []
    said = "sarif is empty: nothing is new or worse, and no gate was given, for example --fail-if step_time:+5%"
    assert (said in capsys.readouterr().err) == (not options)


def test_a_bound_and_a_rule_are_called_what_the_report_calls_them(saved, capsys):
    (saved / "slow.json").write_bytes(training(12, fetch=800, kernels=10).bytes())
    (saved / "fast.json").write_bytes(training(12, fetch=10, kernels=10).bytes())
    assert main(["analyze", "slow.json", "-o", "slow.md"]) == 0
    assert "INPUT-BOUND" in capsys.readouterr().out
    assert main(["diff", "fast.json", "slow.json", "-o", "diff.sarif"]) == 0
    assert "input-bound" in capsys.readouterr().out
    assert main(["check", "slow.json", "--budget", "step_time=1s", "-o", "check.sarif"]) == 0
    compared, checked = (
        json.loads((saved / name).read_text("utf-8"))["runs"][0]["tool"]["driver"]["rules"]
        for name in ("diff.sarif", "check.sarif")
    )
    assert [rule for rule in compared if rule["id"] == "IN001"] == [rule for rule in checked if rule["id"] == "IN001"]
    assert checked


def test_one_format_goes_to_standard_output_alone(saved, capsys):
    assert main(["diff", "before.json", "after.json", "-f", "json", "-o", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["schema_version"] == 1


def test_the_ending_tells_the_format(saved):
    (saved / "out").mkdir()
    assert main(["diff", "before.json", "after.json", "-o", "pr.md"]) == 0
    assert main(["diff", "before.json", "after.json", "-o", "out", "-f", "json"]) == 0
    assert (saved / "pr.md").is_file()
    assert [item.suffix for item in (saved / "out").iterdir()] == [".json"]


def test_more_recordings_of_a_side(saved, capsys):
    more = ["--also-before", "before.json", "--also-after", "after.json", "--also-after", "after.json"]
    assert main(["diff", "before.json", "after.json", *more]) == 0
    assert "From 2 and 3 recordings" in capsys.readouterr().out


def test_a_directory_that_keeps_only_its_report_is_read(saved, capsys):
    (saved / "run").mkdir()
    (saved / "before.json").rename(saved / "run" / "report.json")
    assert main(["diff", "run", "after.json"]) == 0
    assert "SLOWER" in capsys.readouterr().out


def test_reports_may_be_passed_from_python():
    before = report_of([30 * MS] * 240)
    diff = api.diff(before, report_of([33 * MS] * 240), fail_if=["step_time:+5%"], also_before=[before])
    assert (diff.verdict, diff.gates[0].status) == ("slower", "failed")


def test_in_github_actions_the_gate_is_annotated_and_the_summary_appended(saved, capsys, monkeypatch):
    summary = saved / "summary.md"
    summary.write_text("before\n", encoding="utf-8")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert main(["diff", "before.json", "after.json", "--fail-if", "step_time:+5%", "-q"]) == 1
    assert "::error title=profilerkit step_time::" in capsys.readouterr().err
    assert summary.read_text("utf-8").startswith("before\n<!-- profilerkit-diff -->\n")


@pytest.mark.parametrize("name", ["::error::owned", "  ::error::owned", "x ##[error]owned"])
def test_a_name_is_no_command_for_github(saved, capsys, monkeypatch, name):
    report_of([30 * MS] * 240, name=name, command=f"\n{name}").to_json("named.json")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert main(["diff", "named.json", "named.json"]) == 0
    shown = capsys.readouterr()
    lines = [line.strip() for line in (shown.out + shown.err).splitlines()]
    assert any("owned" in line for line in lines)
    assert not any(line.startswith("::") or "##[" in line for line in lines)


def test_outside_of_actions_both_are_there_on_demand(saved, capsys):
    assert main(["diff", "before.json", "after.json", "--annotations", "--summary", "summary.md"]) == 0
    assert "::warning title=slower::" in capsys.readouterr().err
    assert (saved / "summary.md").is_file()


@pytest.mark.parametrize(
    ("arguments", "what", "hint"),
    [
        (["before.json"], "cannot be run as given", "see profilerkit diff --help"),
        (["before.json", "missing"], "missing does not exist", "check the spelling"),
        (["before.json", "after.json", "--fail-if", "step_time:5%"], "is not a gate", "write step_time:+5%"),
        (["before.json", "after.json", "--fail-if", "stp_time:+5%"], "unknown metric", "did you mean step_time?"),
        (["before.json", "after.json", "-o", "-"], "-o - needs one format", "add -f json"),
        (["before.json", "after.json", "-o", "x.pdf"], "the format of x.pdf is unknown", "-f"),
        (["before.json", "after.json", "-o", "no/x.md"], "cannot write no/x.md", "create it first"),
        (["before.json", "after.json", "-f", "junit"], "junit would be empty", "add --fail-if step_time:+5%"),
        (["before.json", "after.json", "-o", "x.xml"], "junit would be empty", "profilerkit check"),
        (["before.json", "after.json", "-f", "pdf"], "unknown value for --format", "these"),
        (["before.json", "after.json", "--summary", "no/x.md"], "cannot write no/x.md", "--summary"),
    ],
)
def test_errors_have_three_parts_and_exit_code_two(saved, capsys, arguments, what, hint):
    assert main(["diff", *arguments]) == 2
    shown = capsys.readouterr().err
    assert what in shown
    assert "cause: " in shown
    assert hint in shown.split("hint:  ")[1]


def test_a_wrong_gate_is_refused_before_anything_is_read(saved, monkeypatch):
    monkeypatch.setattr(api, "read_report", lambda *_: pytest.fail("read"))
    assert main(["diff", "before.json", "after.json", "--fail-if", "x"]) == 2


def test_what_could_not_be_looked_for_before_is_no_alert(saved):
    found = report_of(findings={"IN001": input_bound().outcomes[0].findings})
    assert found.outcomes[0].findings
    report_of(findings={"IN001": "missing_data"}).to_json("unseen.json")
    report_of(findings={"IN001": "passed"}).to_json("seen.json")
    found.to_json("found.json")

    def alerts(before):
        assert main(["diff", before, "found.json", "-o", "diff.sarif", "--location", "train.py"]) == 0
        return json.loads((saved / "diff.sarif").read_text("utf-8"))["runs"][0]["results"]

    assert alerts("unseen.json") == []
    (alert,) = alerts("seen.json")
    assert alert["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "train.py"


def test_what_is_analysed_is_with_the_settings_of_the_project(saved, capsys):
    (saved / "trace.json").write_bytes(training(12, fetch=800, kernels=10).bytes())
    assert main(["diff", "trace.json", "trace.json", "-o", "-", "-f", "json"]) == 0
    assert '"rule": "IN001"' in capsys.readouterr().out
    (saved / "pyproject.toml").write_text('[tool.profilerkit]\nignore = ["IN"]\n', encoding="utf-8")
    assert main(["diff", "trace.json", "trace.json", "-o", "-", "-f", "json"]) == 0
    assert '"rule": "IN001"' not in capsys.readouterr().out
    assert main(["diff", "before.json", "after.json"]) == 0
    assert "before.json is a saved report: it keeps the settings it was made with" in capsys.readouterr().err


def test_a_shared_directory_keeps_every_comparison(saved):
    (saved / "kept").mkdir()
    for sides in (["before.json", "after.json"], ["after.json", "before.json"]):
        assert main(["diff", *sides, "-f", "html,md", "-o", "kept"]) == 0
    names = [item.name for item in (saved / "kept").iterdir()]
    assert len(names) == 4
    assert all(re.fullmatch(r"diff\.\d{8}-\d{6}\.[0-9a-f]{8}\.(html|md)", name) for name in names)
