"""Every report in every output: the same sections and numbers, hostile names inert, and the budgets of text."""

import re
import sys

import pytest
from msgspec.structs import replace

from profilerkit.model.finding import in_order
from profilerkit.report import html, markdown, sections, terminal
from profilerkit.report.blocks import Axis, Chart, Figure, Section, Shape, Table, Text, Tick, Value
from profilerkit.report.html_blocks import section
from profilerkit.results import as_report
from tests.report.pages import Page, spaces
from tests.report.samples import HOSTILE, LONG, SAMPLES, hostile, late_rank, starved

OUTPUTS = {
    "html": html.render,
    "cell": html.render_verdict,
    "markdown": markdown.render,
    "terminal": lambda report: terminal.render(report, verbose=True),
}
#: Samples of runs as there are.
PLAIN = [name for name in SAMPLES if not name.startswith("hostile")]
#: What may not reach a reader as it is.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@pytest.fixture(scope="module")
def reports():
    return {name: build() for name, build in SAMPLES.items()}


@pytest.mark.parametrize("name", SAMPLES)
def test_every_output_says_the_verdict(reports, name):
    verdict = reports[name].verdict
    for output in OUTPUTS.values():
        assert verdict.bound.upper() in output(reports[name])


@pytest.mark.parametrize("name", ["input_bound", "compute_bound", "multi_rank"])
def test_a_saving_reads_the_same_in_every_output(reports, name):
    report = reports[name]
    saves = [found.saves for found in sections.findings_of(report).all if found.fix and found.saves][:1]
    for output in OUTPUTS.values():
        assert all(text in spaces(output(report)) for text in saves)


@pytest.mark.parametrize("name", SAMPLES)
def test_the_page_and_the_terminal_have_the_same_sections(reports, name):
    report = reports[name]
    made = sections.document(report)
    page, text = Page(html.render(report)), terminal.render(report, verbose=True, width=200)
    ids = [attrs.get("id") for attrs in page.all("details")]
    assert ids == [one.id for one in made.sections]
    assert all(one.title in text for one in made.sections)


@pytest.mark.parametrize("name", SAMPLES)
def test_the_page_loads_nothing_and_every_link_within_it_resolves(reports, name):
    text = html.render(reports[name])
    page = Page(text)
    assert page.open == []
    assert not {tag for tag, _ in page.tags} & {"link", "img", "iframe", "object", "embed", "form", "base"}
    assert not any(key.startswith("on") for _, attrs in page.tags for key in attrs)
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {attrs["href"][1:] for attrs in page.all("a") if attrs.get("href", "").startswith("#")} <= set(ids)
    policy = next(attrs["content"] for attrs in page.all("meta") if attrs.get("http-equiv"))
    assert policy.startswith("default-src 'none'")
    assert policy.count("'sha256-") == len([attrs for attrs in page.all("script") if not attrs])
    assert len(page.all("h1")) == 1
    assert "Download the JSON" in page.text


@pytest.mark.parametrize("name", [HOSTILE, LONG])
@pytest.mark.parametrize("output", OUTPUTS)
def test_hostile_names_are_inert(name, output):
    text = OUTPUTS[output](hostile(name))
    assert not CONTROL.search(text)
    if output in ("html", "cell"):
        page = Page(text)
        assert "<script>alert" not in text
        assert page.open == []
        assert not {"b", "img"} & {tag for tag, _ in page.tags}
    if output == "markdown":
        bare = re.sub(r"(?m)^(`{3,}).*?^\1$|(?<!\\)`[^`\n]+`", "", text, flags=re.DOTALL)
        assert set(re.findall(r"<(?!!--)/?([a-zA-Z]+)", bare)) <= {"details", "summary"}
        assert "https://" not in bare


def test_a_finding_that_overlaps_another_stands_within_it():
    report = SAMPLES["input_bound"]()
    first, second = starved(), replace(late_rank("E9"), overlaps="IN001")
    outcome = report.outcomes[0]
    both = (replace(outcome, rule="IN001", findings=(first,)), replace(outcome, rule="CO003", findings=(second,)))
    (found,) = sections.findings_of(replace(report, outcomes=both)).all
    assert [other.rule for other in found.others] == ["CO003"]
    assert "Or: " in Page(html.render(replace(report, outcomes=both))).text


def test_findings_of_rules_that_name_each_other_are_all_shown():
    report = SAMPLES["input_bound"]()
    outcome = report.outcomes[0]
    pairs = [("IN001", replace(starved(), overlaps="CO003")), ("CO003", replace(late_rank(), overlaps="IN001"))]
    ring = tuple(replace(outcome, rule=rule, findings=(found,)) for rule, found in pairs)
    found = sections.findings_of(replace(report, outcomes=ring)).all
    shown = [one.rule for top in found for one in (top, *top.others)]
    assert sorted(shown) == ["CO003", "IN001"]


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("width", [40, 80])
def test_the_terminal_says_what_to_do_in_24_lines(reports, name, width):
    text = terminal.render(reports[name], width=width)
    assert max(map(len, text.splitlines())) <= width
    assert len(text.splitlines()) <= 24 or width < 80
    assert "\x1b" not in text
    assert terminal.render(reports[name], width=width, ascii_only=True).isascii()


def test_the_terminal_has_the_code_of_the_first_fix_and_colour_on_demand(reports):
    report = reports["input_bound"]
    _, finding = next(pair for pair in in_order(report.outcomes) if pair[1].fix and pair[1].fix.code)
    assert finding.fix.code.splitlines()[0] in terminal.render(report)
    assert "\x1b[" in terminal.render(report, colour=True)


@pytest.mark.parametrize("name", PLAIN)
def test_markdown_fits_a_comment_and_says_what_to_do_before_the_first_fold(reports, name):
    text = markdown.render(reports[name])
    assert len(text.encode("utf-8", "replace")) <= markdown.LIMIT_BYTES
    before = text.partition("<details>")[0]
    assert len(re.findall(r"\S+", before)) <= 150
    assert text.count("<details>") == text.count("</details>")
    assert "HTML page" in before


@pytest.mark.parametrize("name", ["inconclusive", "empty"])
def test_where_nothing_can_be_advised_the_command_that_helps_is_the_headline(reports, name):
    for output in (terminal.render, markdown.render, html.render):
        text = output(reports[name])
        assert "profilerkit run -- train.py" in text
        assert "No change can be recommended" not in text


def test_a_run_that_is_healthy_is_told_to_change_nothing(reports):
    assert "Nothing needs to change" in terminal.render(reports["balanced"])


def test_a_notebook_cell_has_no_ids_no_script_and_no_element_that_notebooks_style(reports):
    page = Page(as_report(reports["input_bound"])._repr_html_())
    assert not [attrs for _, attrs in page.tags if "id" in attrs]
    assert not {tag for tag, _ in page.tags} & {"script", "dl", "dt", "dd", "table", "h1", "h2", "button"}


def drawn(_report):
    """A section as a newcomer would write it: a chart with its table, and a number."""
    table = Table("", ("Step", "Time"), (("1", Value(2e6, "ns")),))
    axis = Axis("Time", (Tick(0.0, "0"),))
    shape = Shape("compute", "area", "M0 0H10V100z")
    chart = Chart("new-chart", "Steps take 2 ms", "One step.", 80, (shape,), axis, axis, (), (), table)
    return Section("new", "A new section", "one step", (Text.of("The step takes ", Value(2e6, "ns"), "."), chart))


def test_a_new_section_is_shown_by_every_walker(reports, monkeypatch):
    monkeypatch.setattr(sections, "SECTIONS", (*sections.SECTIONS, drawn))
    report = reports["input_bound"]
    page = Page(html.render(report))
    assert {"new", "new-chart"} <= {attrs.get("id") for _, attrs in page.tags}
    assert page.open == []
    assert "Steps take 2 ms" in terminal.render(report, verbose=True)
    assert "The step takes 2.00 ms." in spaces(terminal.render(report, verbose=True))


def test_a_figure_brings_its_data_its_script_and_plotly_only_when_it_is_there(reports, monkeypatch):
    report = reports["input_bound"]
    assert 'id="plotly"' not in html.render(report)
    figure = Figure("lanes", "Lanes", {"name": "</script><b>"}, "report.js", drawn(report).blocks[1], plotly=True)
    made = Section("figure", "Figure", "", (figure,))
    monkeypatch.setattr(sections, "SECTIONS", (*sections.SECTIONS, lambda _: made))
    text = html.render(report)
    page = Page(text)
    assert page.open == []
    assert {"lanes", "lanes-data", "plotly", "new-chart"} <= {attrs.get("id") for _, attrs in page.tags}
    data = re.search(r'id="lanes-data">(.*?)</script>', text).group(1)
    assert "<" not in data
    assert len(text) < 2_200_000


def test_a_searchable_table_keeps_whole_names_and_numbers_to_sort_by(reports):
    text = str(section(sections.kernels.section(reports["hostile"])))
    assert 'class="stacked sort"' in text
    assert 'data-v="' in text


NEW = """
from profilerkit.report.blocks import Section, Text


def section(report):
    return Section("new", "A new section", "one file", (Text.of("It is found."),))


SECTIONS = {35: section}
"""


def test_a_section_is_one_file_and_stands_at_its_place(reports, tmp_path, monkeypatch):
    today = sections.in_order()
    (tmp_path / "new_section.py").write_text(NEW)
    monkeypatch.setattr(sections, "__path__", [*sections.__path__, str(tmp_path)])
    found = sections.in_order()
    monkeypatch.delitem(sys.modules, f"{sections.__name__}.new_section")
    assert tuple(make for make in found if make in today) == today == sections.SECTIONS
    monkeypatch.setattr(sections, "SECTIONS", found)
    ids = [made.id for made in sections.document(reports["input_bound"]).sections]
    assert ids[ids.index("new") - 1] == "steps"
    assert 'id="new"' in html.render(reports["input_bound"])
    assert "It is found." in spaces(terminal.render(reports["input_bound"], verbose=True))


def test_no_two_sections_have_the_same_place():
    modules = {sys.modules[make.__module__] for make in sections.SECTIONS}
    places = [place for module in modules for place in module.SECTIONS]
    assert len(set(places)) == len(places) == len(set(sections.SECTIONS))
