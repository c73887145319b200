"""The page: offline, small, readable without script, and inert against names from traces."""

import base64
import gzip
import hashlib
import html as html_text
import json
import re
from html.parser import HTMLParser
from itertools import pairwise

import msgspec
import pytest

from profilerkit.report import html, view
from profilerkit.report import json as report_json
from profilerkit.report.figures import step_figure
from profilerkit.report.timeline import timeline_of
from tests.report.samples import HOSTILE, SAMPLES, SCRIPT
from tests.report.test_view import spaces

VOID = {"meta", "link", "br", "img", "input", "hr", "col", "line", "path", "source", "wbr"}


class Page(HTMLParser):
    """Tags with attributes, ids, visible text, and whether every tag is closed."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.words, self.open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in {"script", "style"}:
            self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.words))

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture(scope="module")
def pages():
    return {name: html.render(build()) for name, build in SAMPLES.items()}


def without_payload(text):
    """The page without data: links and script bodies."""
    text = re.sub(r"<script[^>]*>.*?</script>", "", text, flags=re.DOTALL)
    return re.sub(r'"data:[^"]*"', '""', text)


@pytest.mark.parametrize("name", SAMPLES)
def test_the_page_asks_nothing_from_anywhere(pages, name):
    page = Page(pages[name])
    for tag, attrs in page.tags:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base", "form", "audio", "video"}
        for attribute in ("src", "srcset", "action", "poster", "data", "xlink:href"):
            assert attribute not in attrs, (tag, attribute)
        href = attrs.get("href", "#")
        assert href.startswith(("#", "data:application/")), href
    style = "".join(re.findall(r"<style>(.*?)</style>", pages[name], flags=re.DOTALL))
    assert "url(" not in style
    assert "@import" not in style
    if "hostile" not in name:
        assert "//" not in re.sub(r"<style>.*?</style>", "", without_payload(pages[name]), flags=re.DOTALL)


@pytest.mark.parametrize("name", SAMPLES)
def test_the_policy_allows_no_network_and_only_the_reports_own_scripts(pages, name):
    page = Page(pages[name])
    policy = next(attrs["content"] for attrs in page.all("meta") if "http-equiv" in attrs)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    assert "unsafe" not in rules["script-src"]
    assert "connect-src" not in rules
    script = re.findall(r"<script>(.*?)</script>", pages[name], flags=re.DOTALL)
    assert len(script) == 1
    digest = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    assert f"'sha256-{digest}'" in rules["script-src"]


@pytest.mark.parametrize("name", SAMPLES)
def test_size_stays_within_its_budget(pages, name):
    assert len(pages[name].encode()) <= 2_200_000
    assert len(html.render(SAMPLES[name](), explorer=False).encode()) <= 400_000


def test_a_report_that_is_too_large_leaves_out_the_json_and_says_so():
    report = SAMPLES["many_steps"]()
    noise = {f"setting {number}": hashlib.sha256(str(number).encode()).hexdigest() for number in range(9_000)}
    large = msgspec.structs.replace(report, run=msgspec.structs.replace(report.run, settings=noise))
    text = html.render(large)
    assert len(text.encode()) <= 2_200_000
    assert "data:application" not in text
    assert "profilerkit analyze -f json" in text


@pytest.mark.parametrize("name", SAMPLES)
def test_the_page_is_a_document_people_and_screen_readers_can_use(pages, name):
    page = Page(pages[name])
    assert page.open == []
    assert page.all("html")[0]["lang"] == "en"
    assert len(page.all("h1")) == 1
    for landmark in ("header", "main", "nav", "footer"):
        assert len(page.all(landmark)) == 1
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    for attrs in page.all("a"):
        if attrs["href"].startswith("#"):
            assert attrs["href"][1:] in ids
    for _, attrs in page.tags:
        for target in attrs.get("aria-labelledby", "").split():
            assert target in ids
    headings = [int(tag[1]) for tag, _ in page.tags if tag in {"h1", "h2", "h3"}]
    assert all(later <= earlier + 1 for earlier, later in pairwise(headings))


@pytest.mark.parametrize("name", SAMPLES)
def test_nothing_is_shown_as_a_dash_or_as_none(pages, name):
    words = Page(pages[name]).text
    assert "—" not in words
    if "hostile" not in name:
        assert not re.search(r"\b(None|nan|undefined|null)\b", words)


@pytest.mark.parametrize("name", [name for name in SAMPLES if "hostile" not in name])
def test_the_first_screen_is_short(name):
    built = view.build(SAMPLES[name]())
    prose = [built.kind.text, built.headline, *built.limits, built.consequence]
    assert sum(len(text.split()) for text in prose) <= 60
    assert len(built.tiles) == 4
    assert len({segment.family for segment in built.bar}) == len(built.bar) <= 6
    assert len(built.changes) <= 3


@pytest.mark.parametrize("name", SAMPLES)
def test_everything_on_the_first_screen_is_text_without_script(pages, name):
    words = Page(pages[name]).text.replace("\u00a0", " ")
    built = view.build(SAMPLES[name]())
    for tile in built.tiles:
        assert tile.value in words
    for part in built.parts:
        assert part.time in words
        assert part.source in words


def test_hostile_names_are_text_everywhere(pages):
    text = pages["hostile"]
    assert "<script>alert" not in text
    assert "<img" not in text
    assert "<b>b</b>" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    page = Page(text)
    assert {tag for tag, _ in page.tags if tag == "script"} == {"script"}
    assert len(page.all("script")) == 3
    assert not [attrs for _, attrs in page.tags if any(key.startswith("on") for key in attrs)]
    assert "{{ 7*7 }}" in page.text
    assert "</script><script>alert(1)" in page.text


def test_hostile_names_cannot_end_the_figures_data(pages):
    body = re.search(r'<script type="application/json" id="figure-data">(.*?)</script>', pages["hostile"]).group(1)
    assert not set("<>&\u2028\u2029") & set(body)
    assert all("<" not in note for note in json.loads(body)["notes"])


def test_a_hostile_part_that_is_largest_is_escaped_twice_for_the_figure():
    report = SAMPLES["hostile"]()
    rows = tuple(msgspec.structs.replace(row, parts={SCRIPT: row.time_ns}) for row in report.steps.rows)
    text = html.render(msgspec.structs.replace(report, steps=msgspec.structs.replace(report.steps, rows=rows)))
    body = re.search(r'id="figure-data">(.*?)</script>', text).group(1)
    assert "\\u003c" not in body
    note = json.loads(body)["notes"][0]
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in note
    assert html_text.unescape(note).endswith(SCRIPT)


@pytest.mark.parametrize(("name", "cut"), [("lengths_only", True), ("compute_bound", False)])
def test_the_mark_of_a_column_that_is_cut_off_has_a_legend_and_no_severity(name, cut):
    text = html.render(SAMPLES[name](), explorer=False)
    assert ("Cut off: higher than the scale" in text) is cut
    assert ('<path class="mark"' in text) is cut
    assert ".mark{--fill:var(--text)}" in text
    marks = step_figure(timeline_of(SAMPLES[name]()))["marks"]
    assert bool(marks) is cut


@pytest.mark.parametrize("name", ["input_bound", "many_steps"])
def test_the_download_is_the_report(pages, name):
    href = next(a["href"] for a in Page(pages[name]).all("a") if "download" in a)
    kind, _, payload = href.partition(";base64,")
    content = base64.b64decode(payload)
    if kind.endswith("gzip"):
        content = gzip.decompress(content)
    assert report_json.load(content) == SAMPLES[name]()


def test_the_packed_script_is_the_installed_plotly(pages):
    from plotly.offline import get_plotlyjs

    found = re.search(r'id="figure-script" data-length="(\d+)">([^<]*)</script>', pages["balanced"])
    digits = found.group(2).translate(str.maketrans(",.:", "<>&"))
    packed = base64.b85decode(digits)[: int(found.group(1))]
    assert gzip.decompress(packed).decode() == get_plotlyjs()


def test_sections_without_data_are_left_out(pages):
    words = Page(pages["inconclusive"]).text
    for anchor in ("changes", "others", "ranks", "memory", "kernels"):
        assert f'id="{anchor}"' not in pages["inconclusive"]
    assert "were not recorded" in words
    assert 'id="figure-script"' not in pages["inconclusive"]


def test_every_outcome_is_counted_and_collapsed(pages):
    page = Page(pages["input_bound"])
    words = page.text
    for label, count in (("Passed", 12), ("Not applicable", 6), ("Could not run: data missing", 2), ("Suppressed", 1)):
        assert f"{label} {count}" in words
    assert all("open" not in attrs for attrs in page.all("details"))


def test_missing_signals_come_with_the_way_to_record_them(pages):
    words = Page(pages["input_bound"]).text
    assert "Measured: device events and loader waits." in words
    assert "The driver library was not found." in words
    assert "profilerkit run -- train.py" in words


def test_a_blamed_rank_is_marked(pages):
    assert pages["multi_rank"].count('class="marked"') == 1
    assert re.search(r'class="marked"><td[^>]*>Rank 5 <span class="tag">cause', pages["multi_rank"])


def test_very_many_ranks_show_the_slowest_and_the_cause():
    report = SAMPLES["multi_rank"]()
    many = tuple(
        msgspec.structs.replace(
            report.ranks[n % 64], rank=n, step_ns=report.ranks[0].step_ns + (5000 - n if n != 5 else -1)
        )
        for n in range(1_000)
    )
    text = html.render(msgspec.structs.replace(report, ranks=many), explorer=False)
    assert "The 128 ranks with the longest steps. The JSON has all 1000." in text
    assert 'class="tag">cause' in text


def test_the_notebook_cell_has_the_verdict_and_no_script():
    for build in SAMPLES.values():
        cell = html.render_verdict(build())
        page = Page(cell)
        assert page.open == []
        assert not page.all("script")
        assert not page.all("a")
        assert not [attrs for _, attrs in page.tags if "id" in attrs]
    cell = SAMPLES["input_bound"]()._repr_html_()
    assert "The GPU waits 38\u00a0ms of every 176\u00a0ms step for data" in cell


def test_rendering_twice_gives_the_same_bytes():
    report = SAMPLES["input_bound"]()
    assert html.render(report) == html.render(report)


def test_code_spans_are_set_as_code(pages):
    assert "Raise <code>num_workers</code> 2 → 8" in spaces(pages["input_bound"])


def test_hostile_text_holds_what_the_tests_rely_on():
    for piece in (SCRIPT, "[red]", "|", "```", "\x1b[31m", "\u202e", "{{ 7*7 }}"):
        assert piece in HOSTILE
