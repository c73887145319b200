"""A comparison rendered: terminal, Markdown, HTML, JSON, and what continuous integration reads."""

import json
import re
import xml.etree.ElementTree as ElementTree

import msgspec
import pytest
from msgspec.structs import replace

from profilerkit.compare import compare
from profilerkit.model.diff import Diff, Gate
from profilerkit.model.finding import Evidence, Finding, Fix, Saving
from profilerkit.model.run import Loader
from profilerkit.report import ci, html, markdown, terminal
from profilerkit.report import json as report_json
from profilerkit.report.ci import Alert
from profilerkit.report.diff_document import parts_table
from profilerkit.results import as_diff
from tests.comparisons import MS, report_of
from tests.report.pages import Page
from tests.report.samples import HOSTILE, LONG
from tests.report.test_json import problems


def finding(title="The loader is slow", fix="num_workers 0 → 4."):
    return Finding(
        title=title,
        bound="input-bound",
        confidence="high",
        severity="high",
        why="x",
        evidence=(Evidence(label="wait", value=1.0, unit="ns", source="measured", origin="x"),),
        saving=Saving(low=0.2, expected=0.3, high=0.4, method="analytic"),
        fix=Fix(text=fix),
    )


def faster():
    """Workers were added as proposed: 30 → 20 ms; the gate on the part holds, nobody measured a device."""
    before = report_of(
        [30 * MS] * 240,
        parts={"input.prep": 0.4, "compute.math": 0.6},
        findings={"IN001": (finding(),), "CP001": (finding("Unchanged", ""),), "OV001": "passed"},
        loader=Loader(kind="DataLoader", num_workers=0, batch_size=32),
        name="before",
        versions={"torch": "2.12"},
    )
    after = report_of(
        [20 * MS] * 240,
        parts={"input.prep": 0.1, "compute.math": 0.9},
        findings={"IN001": "passed", "CP001": (finding("Unchanged", ""),), "OV001": (finding("New", ""),)},
        loader=Loader(kind="DataLoader", num_workers=4, batch_size=32),
        name="after",
        versions={"torch": "2.13"},
    )
    return compare(before, after, ["step_time:+5%", "findings:high", "busy:-5pt"])


def test_movements_within_noise_have_no_headline_of_their_own():
    sides = [report_of(parts={"input.prep": share, "compute.math": 1.0 - share}) for share in (0.40, 0.41)]
    assert "What moved · nothing by more than noise" in terminal.render(compare(*sides))
    assert "What moved · Input takes" in terminal.render(faster())


def incomparable():
    return compare(report_of(), report_of(world_size=2), ["step_time:+5%"])


def same():
    return compare(report_of(queued=0.1), report_of(queued=0.1))


def hostile(name=HOSTILE):
    kept = {"IN001": (finding(name, f"num_workers 0 → 4 {name}"),)}
    settings = {f"{name}{number}": name for number in range(40)}
    before = report_of([30 * MS] * 240, name=name, findings=kept, command=name, settings=settings)
    after = report_of([20 * MS] * 240, name=name, findings={"IN001": "passed", "CP001": (finding(name, name),)})
    gates = (Gate(name=name, limit=name, measured=name, status="failed", reason=name),)
    return replace(compare(before, after), gates=gates, notes=(name,))


DIFFS = {
    "faster": faster,
    "incomparable": incomparable,
    "same": same,
    "hostile": hostile,
    "hostile_long": lambda: hostile(LONG),
}


@pytest.fixture(scope="module")
def diffs():
    return {name: build() for name, build in DIFFS.items()}


# Terminal.


def test_the_terminal_says_verdict_prediction_and_limits(diffs):
    text = terminal.render(diffs["faster"])
    assert "▼ FASTER" in text
    assert "The step takes 33 % less time: 30.0 ms → 20.0 ms" in text
    assert re.search(r"passed +step_time", text)
    assert re.search(r"FAILED +findings", text)
    assert re.search(r"not judged +busy", text)
    assert re.search(r"33 % \(31 % to 36 +held: within", text)
    assert re.search(r"Input wait: preparing +moved +12\.0 ms +2\.00 ms +−10\.0 ms +40 % → 10 %", text)
    assert "1 finding unchanged: CP001." in text
    assert "\nDifferent: num_workers 0 → 4, torch 2.12 → 2.13\n" in text
    assert re.search(r"From one recording of each, a growth of less than \d.\d % and a\s+fall of\s+less", text)


def test_the_timed_step_is_named_so_where_the_verdict_rests_on_another(diffs):
    assert "Mean step, as timed" in terminal.render(diffs["same"], width=120)
    assert "as timed" not in terminal.render(diffs["faster"])


def test_the_terminal_says_what_cannot_be_compared(diffs):
    text = terminal.render(diffs["incomparable"])
    assert "? NOT COMPARABLE" in text
    assert "Not comparable: world size 1 → 2" in text


@pytest.mark.parametrize("name", DIFFS)
@pytest.mark.parametrize("width", [40, 80])
def test_no_line_is_wider_than_the_terminal(diffs, name, width):
    text = terminal.render(diffs[name], width=width)
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text


@pytest.mark.parametrize("name", DIFFS)
def test_plain_ascii_where_it_is_asked_for(diffs, name):
    assert terminal.render(diffs[name], ascii_only=True).isascii()


def test_colour_is_on_demand(diffs):
    assert "\x1b[" in terminal.render(diffs["faster"], colour=True)


# Markdown.


@pytest.mark.parametrize("name", DIFFS)
def test_markdown_fits_into_six_thousand_bytes_and_closes_what_it_opens(diffs, name):
    text = markdown.render(diffs[name])
    assert len(text.encode("utf-8", "replace")) <= 6_000
    assert text.startswith("<!-- profilerkit-diff -->\n")
    assert text.count("<details>") == text.count("</details>")
    for block in re.findall(r"(?:^\|.*\|$\n?)+", text, re.MULTILINE):
        assert len({row.count("|") for row in block.strip().splitlines()}) == 1


def test_hostile_names_are_inert_in_markdown(diffs):
    text = markdown.render(diffs["hostile"])
    bare = re.sub(r"(?<!\\)`[^`\n]+`", "", text)
    assert set(re.findall(r"<(?!!--)/?([a-zA-Z]+)", bare)) <= {"details", "summary"}
    assert "https://" not in text
    assert "\x1b" not in text


def test_markdown_says_what_is_different_before_what_is_folded(diffs):
    text = markdown.render(diffs["faster"])
    assert text.index("**What is different**") < text.index("**Before and after**") < text.index("<details>")
    assert "**The step takes 33 % less time" in text
    assert "| FAILED | findings |" in text


def test_markdown_of_a_check():
    gates = [Gate(name="step_time", limit="at most 1 ms", measured="2 ms", status="failed", reason="too long")]
    text = markdown.render_gates("run | x", "The `headline`", gates)
    assert text.startswith("<!-- profilerkit-check -->\n### 1 of 1 budgets exceeded: run &#124; x\n")
    assert "| FAILED | step\\_time | at most 1 ms | 2 ms | too long |" in text
    assert "Within budget" in markdown.render_gates("run", "x", [replace(gates[0], status="passed")])


# HTML.


@pytest.mark.parametrize("name", DIFFS)
def test_the_page_loads_nothing_runs_nothing_and_is_closed(diffs, name):
    text = html.render(diffs[name])
    page = Page(text)
    assert page.open == []
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"link", "img", "iframe", "object", "embed", "form", "base"}
    assert not any(attribute.startswith("on") for _, attrs in page.tags for attribute in attrs)
    assert len(page.all("h1")) == 1
    policy = next(attrs["content"] for attrs in page.all("meta") if attrs.get("http-equiv"))
    assert policy.startswith("default-src 'none'")
    assert len(text.encode()) < 100_000


def test_both_steps_are_bars_to_one_scale(diffs):
    page = Page(html.render(diffs["faster"]))
    bars = [attrs for _, attrs in page.tags if attrs.get("role") == "img"]
    assert [bar["aria-label"] for bar in bars] == [
        "Before by family: Input 40 %, Compute 60 %",
        "After by family: Input 10 %, Compute 90 %",
    ]
    widths = re.findall(r'style="width:([\d.]+)%"', html.render(diffs["faster"]))
    assert widths == ["100.00", "66.67"]


def test_what_a_side_does_not_measure_is_called_so():
    diff = faster()
    (first, *others) = diff.parts
    unseen = replace(first, before_ns=None, before_share=None)
    cells = parts_table((unseen, *others)).rows[0]
    share = parts_table(diff.parts).rows[0][-1].partition(" → ")[2]
    assert (cells[2], cells[4], cells[5]) == ("not measured", "not known", f"{share} after")


def test_without_parts_there_is_no_bar():
    bare = replace(report_of(), breakdown=())
    assert 'role="img"' not in html.render(compare(bare, bare))


# JSON.


@pytest.mark.parametrize("name", DIFFS)
def test_json_fits_the_schema_that_ships(diffs, name):
    schema = json.loads(report_json.schema_path(Diff).read_text(encoding="utf-8"))
    value = json.loads(report_json.render(diffs[name]))
    assert problems(value, schema, schema) == []
    assert value["schema_version"] == 1


def test_the_shipped_schema_of_comparisons_is_fresh():
    assert report_json.schema_path(Diff).read_text(encoding="utf-8") == report_json.schema_text(Diff), (
        "run: python -c 'from profilerkit.report.json import write_schemas; write_schemas()'"
    )


def test_diff_methods_write_files(diffs, tmp_path):
    diff = as_diff(diffs["faster"])
    for name, write in (("json", diff.to_json), ("html", diff.to_html), ("md", diff.to_markdown)):
        path = tmp_path / f"diff.{name}"
        assert write(path) == path.read_text(encoding="utf-8")
    assert msgspec.json.decode((tmp_path / "diff.json").read_bytes(), type=type(diff)) == diff
    assert Page(diff._repr_html_()).open == []
    assert repr(diff).startswith("<Diff faster: The step takes 33 % less time")


# Continuous integration.

GATES = (
    Gate(name="step_time", limit="at most 1 ms", measured="2 ms", status="failed", reason="too <long>"),
    Gate(name="input", limit="at most 1 %", measured="0 %", status="passed"),
    Gate(name="busy", limit="at least 1 %", measured="not measured", status="not judged", reason="no device"),
)
ALERT = Alert(rule="IN001", summary="No starving.", severity="high", message="100 % idle, on: rank 0\nnow")


def test_junit_has_a_case_for_each_gate():
    root = ElementTree.fromstring(ci.junit('a "run"', GATES))
    suite = root.find("testsuite")
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "3",
        "failures": "1",
        "errors": "0",
        "skipped": "1",
    }
    cases = suite.findall("testcase")
    assert [case.get("classname") for case in cases] == ['a "run"'] * 3
    assert cases[0].find("failure").get("message") == "too <long>"
    assert cases[0].find("failure").text == "measured: 2 ms"
    assert list(cases[1]) == []
    assert cases[2].find("skipped").get("message") == "no device"


@pytest.mark.parametrize("name", [HOSTILE, LONG, "\x00\x01\ufffe"])
def test_no_name_breaks_the_xml(name):
    gates = [replace(gate, name=name, reason=name, measured=name) for gate in GATES]
    assert len(ElementTree.fromstring(ci.junit(name, gates)).findall(".//testcase")) == 3


def test_sarif_has_what_code_scanning_requires():
    log = json.loads(ci.sarif(GATES, [ALERT], version="0.1.0", location="train.py"))
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-2.1.0.json")
    (run,) = log["runs"]
    known = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert [(result["ruleId"], result["level"]) for result in run["results"]] == [
        ("budget/step_time", "error"),
        ("IN001", "error"),
    ]
    for result in run["results"]:
        assert result["ruleId"] in known
        assert result["message"]["text"]
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "train.py"
        assert place["region"]["startLine"] == 1


def test_annotations_cannot_be_left_by_their_text():
    lines = ci.annotations(GATES, [ALERT])
    assert lines == [
        "::error title=profilerkit step_time::too <long>. Measured: 2 ms.",
        "::warning title=profilerkit busy::no device. Measured: not measured.",
        "::warning title=IN001::100 %25 idle, on: rank 0 now",
    ]
    hostile = ci.annotations([replace(GATES[0], name="a,b::c\n::error::x")], [])
    assert hostile == ["::error title=profilerkit a%2Cb%3A%3Ac %3A%3Aerror%3A%3Ax::too <long>. Measured: 2 ms."]
