import json
import os
import re
import subprocess
import sys
import webbrowser
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from profilerkit import api
from profilerkit.cli import main
from profilerkit.cli.outputs import opening
from profilerkit.config import Settings, Suppression
from profilerkit.diagnosis.cost import with_cost
from profilerkit.model.finding import Saving
from profilerkit.results import as_report
from tests.report import samples

NEXT = "next: open trace.report.html in a browser"
DATA_HEADLINE = samples.input_bound().verdict.headline


@pytest.fixture(autouse=True)
def no_opener(monkeypatch):
    """What this machine opens pages with, and where it shows them, is not what the tests are about."""
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setenv("DISPLAY", ":0")
    for name in ("SSH_CONNECTION", "JPY_PARENT_PID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def analysis(monkeypatch):
    """Replace the analysis by a finished report and remember how it was called."""
    calls = []

    def install(report):
        def analysis(paths, settings, **options):
            calls.append((tuple(paths), settings, options))
            return SimpleNamespace(report=report, step_events=())

        monkeypatch.setattr(api, "analysis", analysis)
        return calls

    return install


@pytest.fixture
def trace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path("trace.json")
    path.write_text('{"traceEvents": []}', encoding="utf-8")
    return path


def files_beside(path):
    return sorted(item.name for item in path.absolute().parent.iterdir() if item.name != path.name)


def test_the_verdict_is_printed_and_the_report_lies_beside_the_trace(trace, analysis, capsys):
    calls = analysis(samples.input_bound())
    assert main(["analyze", "trace.json"]) == 0
    shown = capsys.readouterr()
    assert "input-bound" in shown.out.lower()
    assert files_beside(trace) == ["trace.report.html"]
    assert shown.err.splitlines()[-1].startswith("wrote trace.report.html (")
    assert re.fullmatch(rf"wrote trace\.report\.html \(\S+ [KM]iB\); {NEXT}", shown.err.splitlines()[-1])
    assert calls == [((trace,), Settings(), {"rank": None, "strict": False, "events": True})]


@pytest.mark.parametrize(
    ("run", "trust", "said"),
    [
        ({"failure": "Rank 1 raised ValueError:\nx."}, {}, ". Rank 1 raised ValueError: x. "),
        ({}, {"truncated": True, "events": 12}, ". The trace is cut off: 12 events were read, "),
    ],
)
def test_the_brief_line_says_that_the_run_died_or_the_trace_is_cut_off(trace, analysis, capsys, run, trust, said):
    report = samples.input_bound()
    report = msgspec.structs.replace(
        report,
        run=msgspec.structs.replace(report.run, **run),
        trust=msgspec.structs.replace(report.trust, **trust),
    )
    analysis(report)
    assert main(["analyze", "trace.json", "--brief"]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("wrote")]
    assert DATA_HEADLINE in line
    assert said in line


def test_brief_is_one_line_on_standard_error(trace, analysis, capsys):
    report = samples.input_bound()
    analysis(msgspec.structs.replace(report, trust=msgspec.structs.replace(report.trust, truncated=False)))
    assert main(["analyze", str(trace.absolute()), "--brief"]) == 0
    assert capsys.readouterr() == ("", f"profilerkit: input-bound: {DATA_HEADLINE} (trace.report.html); {NEXT}\n")
    assert main(["analyze", "trace.json", "--brief", "--fail-on", "high"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert main(["analyze", "trace.json", "--brief", "-q"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("name", "report"),
    [("x.json.gz", "x.report.html"), ("x.pt.trace.json", "x.pt.trace.report.html"), ("x", "x.report.html")],
)
def test_endings_of_traces_are_dropped(trace, analysis, name, report):
    analysis(samples.balanced())
    trace.rename(name)
    assert main(["analyze", name]) == 0
    assert Path(report).is_file()


def test_several_paths_are_reported_beside_the_first(trace, analysis):
    analysis(samples.balanced())
    Path("deep").mkdir()
    Path("deep/rank1.json").write_text("{}", encoding="utf-8")
    assert main(["analyze", "deep/rank1.json", "trace.json"]) == 0
    assert Path("deep/rank1.report.html").is_file()


def test_a_directory_of_traces_gets_the_report_inside(trace, analysis):
    analysis(samples.balanced())
    Path("ranks").mkdir()
    assert main(["analyze", "ranks"]) == 0
    assert [item.name for item in Path("ranks").iterdir()] == ["report.html"]


def test_a_run_directory_gets_html_and_json(trace, analysis):
    analysis(samples.balanced())
    Path("run").mkdir()
    Path("run/run.json").write_text("{}", encoding="utf-8")
    assert main(["analyze", "run"]) == 0
    assert sorted(item.name for item in Path("run").iterdir()) == ["report.html", "report.json", "run.json"]


def test_json_to_standard_output_is_alone_there_and_writes_nothing(trace, analysis, capsys):
    analysis(samples.input_bound())
    assert main(["analyze", "trace.json", "-f", "json", "-o", "-"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["verdict"]["bound"] == "input-bound"
    assert shown.err == ""
    assert files_beside(trace) == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["-f", "html,json"], ["trace.report.html", "trace.report.json"]),
        (["-f", "md,text"], ["trace.report.md", "trace.report.txt"]),
        (["-o", "out.md"], ["out.md"]),
        (["-o", "out.html", "-f", "html,json"], ["out.html", "out.json"]),
        (["-o", "out.page", "-f", "html"], ["out.page"]),
        (["-o", "out"], ["out"]),
    ],
)
def test_formats_and_names_are_followed(trace, analysis, options, expected):
    analysis(samples.balanced())
    assert main(["analyze", "trace.json", *options]) == 0
    assert files_beside(trace) == expected


def test_in_an_output_directory_reports_sort_by_time_and_none_is_written_over_another_recordings(trace, analysis):
    analysis(samples.balanced())
    for name, text, day in (("b", "[1]", 2), ("a", "[]", 1)):
        other = Path(name, "trace.json")
        other.parent.mkdir()
        other.write_text(text)
        os.utime(other, (86_400 * day, 86_400 * day))
    Path("out").mkdir()
    for recording in ("b/trace.json", "a/trace.json", "a/trace.json", "a"):
        assert main(["analyze", recording, "-o", "out"]) == 0
    found = sorted(path.name for path in Path("out").iterdir())
    names = [re.sub(r"\.[0-9a-f]{8}\.", ".HEX.", name) for name in found]
    assert names == ["a.19700102-0000.HEX.html", "trace.19700102-0000.HEX.html", "trace.19700103-0000.HEX.html"]


def test_a_report_of_ours_is_rendered_again(trace, analysis, capsys):
    analysis(samples.input_bound())
    assert main(["analyze", "trace.json", "-f", "json"]) == 0
    first = capsys.readouterr().out
    assert main(["analyze", "trace.report.json"]) == 0
    assert capsys.readouterr().out == first
    assert Path("trace.report.html").is_file()


def test_a_directory_that_holds_nothing_but_a_report_is_rendered_again(trace, analysis):
    analysis(samples.balanced())
    assert main(["analyze", "trace.json", "-f", "json", "-o", "report.json"]) == 0
    Path("kept").mkdir()
    Path("report.json").rename("kept/report.json")
    assert main(["analyze", "kept"]) == 0
    assert Path("kept/report.html").is_file()


def test_the_input_is_never_written_over(trace, analysis, capsys):
    analysis(samples.balanced())
    before = trace.read_bytes()
    assert main(["analyze", "trace.json", "-o", "trace.json"]) == 2
    assert "it is the input" in capsys.readouterr().err
    assert trace.read_bytes() == before


def test_a_device_is_written_to_not_replaced(trace, analysis):
    analysis(samples.balanced())
    assert main(["analyze", "trace.json", "-o", "/dev/null"]) == 0
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-o", "absent/x.html"], ("absent is not a directory", "create it")),
        (["-o", "-"], ("-o - needs one format", "-f json")),
        (["-o", "-", "-f", "md,json"], ("-o - needs one format", "2 formats")),
        (["--open", "-f", "json"], ("--open has nothing to open", "add -f html")),
        (["--device", "h100-smx"], ("unknown device", "did you mean h100-sxm?")),
        (["-o", "x.pdf"], ("the format of x.pdf is unknown", ".pdf is none of .html", "-f html")),
        (["-o", "out/"], ("out/ does not exist", "ends in a slash", "create it first")),
        (["-o", "x.html", "-f", "json"], ("x.html is not a name for json", "write to x.json")),
        (["-o", "x.md", "-f", "html,json"], ("x.md is not a name for html and json", "write to x.html")),
    ],
)
def test_what_cannot_be_done_is_said_before_the_analysis(trace, analysis, capsys, options, words):
    calls = analysis(samples.balanced())
    assert main(["analyze", "trace.json", *options]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    for word in words:
        assert word in shown.err
    assert calls == []


def test_an_unknown_rule_is_said_before_the_trace_is_read(trace, capsys):
    assert main(["analyze", "trace.json", "--select", "IN0002"]) == 2
    shown = capsys.readouterr()
    assert (shown.out, files_beside(trace)) == ("", [])
    assert "unknown rule 'IN0002'" in shown.err
    assert "did you mean IN002?" in shown.err


def without_fix(report):
    outcomes = tuple(
        msgspec.structs.replace(
            outcome, findings=tuple(msgspec.structs.replace(finding, fix=None) for finding in outcome.findings)
        )
        for outcome in report.outcomes
    )
    return msgspec.structs.replace(report, outcomes=outcomes)


def first_without_fix(report):
    """The largest finding is an observation."""
    first, *rest = report.outcomes
    bare = msgspec.structs.replace(
        first.findings[0], fix=None, saving=Saving(low=0, expected=0.9, high=1, method="bound")
    )
    return msgspec.structs.replace(report, outcomes=(msgspec.structs.replace(first, findings=(bare,)), *rest))


@pytest.mark.parametrize(
    ("report", "words", "next_line"),
    [
        (samples.input_bound(), [], "open trace.report.html in a browser"),
        (samples.balanced(), [], "open trace.report.html in a browser"),
        (samples.balanced(), ["-o", "a b.html"], "open 'a b.html' in a browser"),
        (samples.input_bound(), ["-f", "md"], "profilerkit rules IN001"),
        (first_without_fix(samples.input_bound()), ["-f", "md"], "profilerkit rules IN001"),
        (samples.input_bound(), ["--open"], "profilerkit rules IN001"),
        (without_fix(samples.input_bound()), ["-f", "md"], "profilerkit analyze trace.json --open"),
        (samples.inconclusive(), [], "open trace.report.html in a browser"),
    ],
)
def test_what_to_do_next_is_to_look_at_the_page_or_what_it_takes(
    trace, analysis, capsys, monkeypatch, report, words, next_line
):
    analysis(report)
    monkeypatch.setattr(webbrowser, "open", lambda url: True)
    assert main(["analyze", "trace.json", *words]) == 0
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"; next: {next_line}")


def test_a_page_that_is_open_and_proposes_nothing_leaves_nothing_to_do(trace, analysis, capsys, monkeypatch):
    analysis(without_fix(samples.input_bound()))
    monkeypatch.setattr(webbrowser, "open", lambda url: True)
    assert main(["analyze", "trace.json", "--open"]) == 0
    assert re.fullmatch(r"wrote trace\.report\.html \(\S+ [KM]iB\)", capsys.readouterr().err.splitlines()[-1])


@pytest.mark.parametrize(
    ("system", "found", "said"),
    [
        ("linux", True, "xdg-open trace.report.html"),
        ("darwin", True, "open trace.report.html"),
        ("linux", False, "open trace.report.html in a browser"),
        ("win32", True, "open trace.report.html in a browser"),
    ],
)
def test_the_page_is_opened_by_what_this_system_has(monkeypatch, system, found, said):
    monkeypatch.setattr("sys.platform", system)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}" if found else None)
    assert opening("trace.report.html") == said


@pytest.mark.parametrize("elsewhere", ["SSH_CONNECTION", "JPY_PARENT_PID", "no DISPLAY"])
def test_no_program_is_named_where_its_window_would_not_be_seen(monkeypatch, elsewhere):
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False) if elsewhere == "no DISPLAY" else None
    monkeypatch.setenv(elsewhere.replace(" ", "_"), "1")
    monkeypatch.setattr("sys.platform", "linux")
    assert opening("trace.report.html") == "open trace.report.html in a browser"


def test_open_without_a_display_prints_the_path_and_starts_nothing(trace, analysis, capsys, monkeypatch):
    analysis(samples.balanced())
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(webbrowser, "open", lambda url: pytest.fail("a browser was started"))
    assert main(["analyze", "trace.json", "--open"]) == 0
    assert "open trace.report.html by hand" in capsys.readouterr().err


def test_an_unwritable_directory_hints_at_another_place(trace, analysis, capsys, monkeypatch):
    analysis(samples.balanced())
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert main(["analyze", "trace.json"]) == 2
    assert "name another place with -o FILE" in capsys.readouterr().err


@pytest.mark.parametrize(("flags", "stream"), [([], 0), (["--brief"], 1)])
def test_a_write_that_fails_leaves_no_part_behind_and_the_verdict_is_told(
    trace, analysis, capsys, monkeypatch, flags, stream
):
    analysis(samples.balanced())

    def fail(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    assert main(["analyze", "trace.json", *flags]) == 2
    told = capsys.readouterr()
    assert "cause: No space left on device" in told.err
    assert "balanced" in told[stream].lower()
    assert ".html)" not in told.err
    assert files_beside(trace) == []


def test_a_missing_path_is_three_lines(trace, capsys):
    assert main(["analyze", "no.json"]) == 2
    assert capsys.readouterr().err.startswith("error: no.json does not exist\ncause: ")


def test_severe_findings_fail_the_gate_only_when_asked(trace, analysis, capsys):
    analysis(samples.input_bound())
    assert main(["analyze", "trace.json"]) == 0
    assert main(["analyze", "trace.json", "--fail-on", "low"]) == 1
    assert "gate failed: --fail-on low" in capsys.readouterr().err
    analysis(samples.balanced())
    assert main(["analyze", "trace.json", "--fail-on", "high"]) == 0


def test_inconclusive_is_3_only_under_strict(trace, analysis):
    analysis(samples.inconclusive())
    assert main(["analyze", "trace.json"]) == 0
    assert main(["analyze", "trace.json", "--strict"]) == 3


def test_quiet_prints_nothing(trace, analysis, capsys):
    analysis(samples.input_bound())
    assert main(["analyze", "trace.json", "-q"]) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "")


def test_settings_come_from_pyproject_and_flags_win(trace, analysis):
    own = 'ignore = ["IN"]\ndevice = "l4"\ncommunication-kernels = ["^my_sum"]\n'
    Path("pyproject.toml").write_text(f"[tool.profilerkit]\n{own}", encoding="utf-8")
    calls = analysis(samples.balanced())
    assert main(["analyze", "trace.json", "--device", "t4", "--rank", "3"]) == 0
    _, settings, options = calls[0]
    assert settings == Settings(ignore=("IN",), device="t4", communication_kernels=("^my_sum",))
    assert options == {"rank": 3, "strict": False, "events": True}


def test_rules_options_suppressions_and_the_price_reach_the_analysis(trace, analysis):
    own = """[tool.profilerkit]
rules-path = "checks"
gpu-hour-price = 2
[tool.profilerkit.rules.IN001]
smallest-share = 0.1
[[tool.profilerkit.suppress]]
rule = "IN002"
reason = "a  mock loader"
until = 2026-12-31
"""
    Path("pyproject.toml").write_text(own, encoding="utf-8")
    calls = analysis(samples.balanced())
    assert main(["analyze", "trace.json", "--gpu-hour-price", "2.5"]) == 0
    assert calls[0][1] == Settings(
        rules_path="checks",
        rules_from=Path.cwd() / "pyproject.toml",
        rules={"IN001": {"smallest_share": 0.1}},
        suppress=(Suppression(rule="IN002", reason="a mock loader", until=date(2026, 12, 31)),),
        gpu_hour_price=2.5,
    )


def test_events_for_a_timeline_are_gathered_only_for_a_page(trace, analysis):
    calls = analysis(samples.balanced())
    assert main(["analyze", "trace.json", "-f", "json,md"]) == 0
    assert calls[0][2]["events"] is False


def test_markdown_links_to_the_page_beside_it(trace, analysis):
    analysis(samples.balanced())
    assert main(["analyze", "trace.json", "-f", "html,md"]) == 0
    assert "(trace.report.html)" in Path("trace.report.md").read_text(encoding="utf-8")


def test_a_report_is_priced_again_without_its_recording(trace, capsys):
    report = with_cost(samples.input_bound(), None)
    Path("run.report.json").write_text(as_report(report).to_json(), encoding="utf-8")
    assert main(["analyze", "run.report.json", "-f", "json", "-o", "-", "--gpu-hour-price", "2"]) == 0
    cost = json.loads(capsys.readouterr().out)["cost"]
    assert (cost["price"], cost["hours"]) == (2.0, report.cost.hours)
    assert cost["lost"][0]["cost"] == pytest.approx(2 * report.cost.lost[0].hours)


@pytest.mark.parametrize("price", ["-1", "dear", "nan"])
def test_a_price_that_is_none_is_refused(trace, analysis, capsys, price):
    analysis(samples.balanced())
    for words in ([f"--gpu-hour-price={price}"], ["--gpu-hour-price", price]):
        assert main(["analyze", "trace.json", *words]) == 2
        shown = capsys.readouterr().err
        assert "error: --gpu-hour-price is not a price" in shown
        assert "hint:  write a number, for example 2.5" in shown


def test_open_starts_a_browser_or_says_that_there_is_none(trace, analysis, capsys, monkeypatch):
    analysis(samples.balanced())
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or False)
    assert main(["analyze", "trace.json", "--open"]) == 0
    assert opened == [Path("trace.report.html").absolute().as_uri()]
    assert "open trace.report.html by hand" in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["-f", "text", "-o", "-"]])
def test_a_pipe_gets_as_many_columns_as_asked_for(trace, analysis, capsys, monkeypatch, options):
    analysis(samples.input_bound())
    monkeypatch.setenv("COLUMNS", "50")
    assert main(["analyze", "trace.json", *options]) == 0
    assert 40 < max(map(len, capsys.readouterr().out.splitlines())) <= 50


def test_colour_is_written_only_when_asked_for(trace, analysis, capsys):
    analysis(samples.input_bound())
    main(["analyze", "trace.json"])
    assert "\x1b[" not in capsys.readouterr().out
    main(["--color", "always", "analyze", "trace.json"])
    assert "\x1b[" in capsys.readouterr().out


def test_a_name_that_is_not_utf8_does_not_stop_the_report(tmp_path):
    name = b"tr\xffce\x1b[31m.json"
    (Path(tmp_path) / name.decode("utf-8", "surrogateescape")).write_text("not json", encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-m", "profilerkit", "analyze", name], cwd=tmp_path, capture_output=True, check=False
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith(b"error: ")
    assert b"\x1b" not in ended.stderr


def test_reports_rendered_again_into_a_shared_directory_do_not_hide_each_other(trace):
    Path("kept").mkdir()
    for name, report in (("a", samples.balanced()), ("b", samples.input_bound())):
        Path(name).mkdir()
        as_report(report).to_json(f"{name}/report.json")
        assert main(["analyze", f"{name}/report.json", "-o", "kept"]) == 0
    names = [item.name for item in Path("kept").iterdir()]
    assert len(names) == 2
    assert all(re.fullmatch(r"report\.\d{8}-\d{4}\.[0-9a-f]{8}\.html", name) for name in names)
