"""The page's sections: their order, what belongs to which, and links from what names a step to its row."""

from html.parser import HTMLParser

import pytest

from profilerkit.model.change import revise
from profilerkit.model.run import Loader, Series
from profilerkit.report.html import render
from profilerkit.report.sections import loader_facts, mapping_facts
from profilerkit.report.templating import environment
from tests.recipes import made
from tests.report.samples import SAMPLES
from tests.report.test_ledger_section import ledger
from tests.report.test_lost_time_section import cost
from tests.report.test_oom import OOM

#: What the reader asks, one after the other; a section without data is left out.
ORDER = ["verdict", "steps", "changes", "others", "ranks", "logs", "memory", "kernels", "trust", "rules", "run"]


class Outline(HTMLParser):
    """The ids of the sections, each with that of the section around it, and where the links lead."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.sections, self.links, self.ids, self._open = {}, [], set(), []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        known = dict(attrs)
        self.ids.add(known.get("id"))
        if tag == "section":
            self.sections[known["id"]] = self._open[-1] if self._open else None
            self._open.append(known["id"])
        if tag == "a" and self._open:
            self.links.append((self._open[-1], known["href"]))

    def handle_endtag(self, tag):
        if tag == "section":
            self._open.pop()

    @property
    def top(self):
        return [name for name, around in self.sections.items() if around is None]

    def steps(self, section):
        return [href for where, href in self.links if where == section and href.startswith("#step-")]


def outline(report):
    return Outline(render(report, explorer=False))


def everything():
    report = SAMPLES["multi_rank"]()
    memory = SAMPLES["input_bound"]().memory
    power = Series(name="gpu.power", unit="mW", n=9, mean=9e4, p10=9e4, p90=9e4, maximum=9e4, device="GPU 0")
    report = revise(report, run=revise(report.run, samples=(power,)))
    return revise(report, memory=memory, oom=OOM, ledger=ledger(), cost=cost(), workers=made(fetch=0.5, core=0.1))


def test_sections_stand_in_the_order_of_a_readers_questions():
    assert outline(everything()).top == ORDER


@pytest.mark.parametrize("name", SAMPLES)
def test_no_report_has_another_order(name):
    found = outline(SAMPLES[name]()).top
    assert found == [anchor for anchor in ORDER if anchor in found]
    assert {"verdict", "steps", "trust", "run"} <= set(found)


def test_the_run_and_its_workers_are_told_where_the_time_goes():
    sections = outline(everything()).sections
    assert (sections["whole"], sections["workers"]) == ("steps", "steps")
    assert (sections["cost"], sections["oom"]) == ("changes", "memory")


@pytest.mark.parametrize(("is_iterable", "rows"), [(True, ["iterable"]), (False, []), (None, [])])
def test_an_iterable_dataset_is_told_among_the_settings_of_its_loader(is_iterable, rows):
    report = SAMPLES["input_bound"]()
    loader = Loader(kind="DataLoader", num_workers=4, is_iterable=is_iterable)
    facts = loader_facts(revise(report, run=revise(report.run, loader=loader)))
    assert [fact.value for fact in facts if fact.label == "dataset"] == rows


def test_the_page_names_its_sections_in_their_order():
    page = render(everything(), explorer=False)
    names = page.partition('<nav aria-label="Sections">')[2].partition("</nav>")[0]
    found = [href.partition('"')[0] for href in names.split('href="#')[1:]]
    assert found == ORDER[1:]


def test_one_rank_has_no_section_about_ranks():
    report = everything()
    assert "ranks" not in outline(revise(report, ranks=report.ranks[:1])).top


def test_out_of_memory_is_told_where_nothing_else_is_known_of_memory():
    report = revise(SAMPLES["inconclusive"](), oom=OOM)
    assert outline(report).sections["oom"] == "memory"


def test_lost_time_is_told_where_no_rule_found_anything():
    report = revise(SAMPLES["balanced"](), cost=cost())
    page = render(report, explorer=False)
    assert Outline(page).sections["cost"] == "changes"
    assert "No rule found a change that is worth making." in page.partition('id="changes"')[2]


def with_evidence(name="balanced", **changes):
    """A report with one finding whose one number rests on these steps."""
    base = SAMPLES[name]()
    (outcome,) = [entry for entry in SAMPLES["input_bound"]().outcomes if entry.rule == "IN001"]
    finding = outcome.findings[0]
    number = revise(finding.evidence[0], **{"rank": None, **changes})
    finding = revise(finding, why="Nothing to link.", evidence=(number,))
    return revise(base, outcomes=(revise(outcome, findings=(finding,)),))


def test_evidence_leads_to_the_rows_of_its_steps():
    assert outline(with_evidence(steps=(12, 20))).steps("changes") == ["#step-12", "#step-20"]
    assert outline(with_evidence(steps=(12, 12))).steps("changes") == ["#step-12"]


def test_a_step_without_a_row_is_no_link():
    assert outline(with_evidence(steps=(12, 4_000))).steps("changes") == []
    assert outline(with_evidence(steps=(3, 4))).steps("changes") == []


def test_the_steps_of_a_rank_that_is_not_told_are_no_links():
    assert outline(with_evidence("multi_rank", steps=(40, 41), rank=5)).steps("changes") == []
    assert outline(with_evidence("multi_rank", steps=(40, 41), rank=0)).steps("changes") == ["#step-40", "#step-41"]


def test_the_words_about_the_steps_lead_to_the_one_they_name():
    assert outline(SAMPLES["lengths_only"]()).steps("steps") == ["#step-7"]


@pytest.mark.parametrize("name", SAMPLES)
def test_every_link_to_a_step_leads_somewhere(name):
    found = outline(SAMPLES[name]())
    assert {href.removeprefix("#") for _, href in found.links if href.startswith("#step-")} <= found.ids


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Step 7 is slow.", '<a href="#step-7">Step 7</a> is slow.'),
        ("steps 7–9", "steps 7–9"),
        ("steps 7–8", 'steps <a href="#step-7">7</a>–<a href="#step-8">8</a>'),
        ("steps 7 and 8", 'steps <a href="#step-7">7</a> and <a href="#step-8">8</a>'),
        ("every step 7 ms longer", "every step 7 ms longer"),
        ("a step 7.5 times as long", "a step 7.5 times as long"),
        ("steps 7–8\u00a0%", "steps 7–8\u00a0%"),
        ("step 70", "step 70"),
        ("misstep 7, step-7", "misstep 7, step-7"),
        ('<b>step 7</b>"', '&lt;b&gt;<a href="#step-7">step 7</a>&lt;/b&gt;&#34;'),
    ],
)
def test_what_counts_as_the_name_of_a_step(text, shown):
    steps = environment().filters["steps"]
    assert steps(text, {"step-7", "step-8"}) == shown


def test_a_setting_that_is_none_is_not_set():
    assert [(fact.label, fact.value) for fact in mapping_facts({"trace_every": "None", "deep": "True"})] == [
        ("deep", "True"),
        ("trace_every", "not set"),
    ]
