"""From the samples' JSON to their pages, and the page that names them; the same JSON always gives the same bytes."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from markupsafe import Markup

from gallery.samples import GROUPS, SAMPLES, Sample
from profilerkit.model.diff import Diff
from profilerkit.report import diff_html, diff_view, html, view
from profilerkit.report import json as report_json
from profilerkit.report.records import Segment
from profilerkit.report.templating import environment, page_css

#: Below the directory of the reports.
JSON_DIRECTORY = "samples"
INDEX = "index.html"
#: What the scores and figures in each of the other pages are about; named where the page is there.
BENCHMARKS = {
    "accuracy.html": "Real runs with known faults, every fix really applied: is the verdict right, and how far are "
    "predicted savings from measured ones? Beside three other tools.",
    "simulated.html": "200 simulated runs of each of 28 faults, and healthy ones, whose truth is known to the event.",
    "whatifs.html": "Savings that the replay foretells, held against the simulated run with the cause removed.",
    "workers.html": "The number of DataLoader workers that is proposed beside the best one measured.",
    "overhead.html": "What recording costs a training step, and what start and end of capture take.",
    "speed.html": "Reading and analysing traces of 100 MB to 1 GB beside json.load and other tools.",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A sample as the index page shows it: its verdict in a line and a sentence, and the bars of its steps."""

    name: str
    shows: str
    tone: str
    shape: str
    kind: str
    headline: str
    bars: tuple[tuple[str, float, tuple[Segment, ...]], ...]


def render(reports: Path) -> Iterator[tuple[str, str]]:
    """Name and text of every page whose JSON is there, and of the index page last."""
    entries = {}
    for sample in SAMPLES:
        source = reports / JSON_DIRECTORY / f"{sample.name}.json"
        if source.exists():
            page, entries[sample.name] = _rendered(sample, source.read_bytes())
            yield f"{sample.name}.html", page
    yield INDEX, _index(entries, [name for name in BENCHMARKS if (reports / name).exists()])


def _rendered(sample: Sample, text: bytes) -> tuple[str, Entry]:
    """The page of a sample, and its entry of the index. A comparison's verdict is a word, a report's a record."""
    if isinstance(msgspec.json.decode(text)["verdict"], str):
        diff = msgspec.json.decode(text, type=Diff)
        compared = diff_view.build(diff)
        bars = tuple((side.label, side.ratio, side.segments) for side in compared.bars)
        entry = Entry(sample.name, sample.shows, compared.tone, compared.shape, compared.word, compared.headline, bars)
        return diff_html.render(diff), entry
    report = report_json.load(text)
    shown = view.build(report)
    bars = (("Shares of the step", 1.0, shown.bar),) if shown.bar else ()
    entry = Entry(sample.name, sample.shows, shown.kind.tone, shown.kind.shape, shown.kind.text, shown.headline, bars)
    return html.render(report, explorer=False), entry


def _index(entries: dict[str, Entry], benchmarks: list[str]) -> str:
    """The index page, in the look of a report."""
    groups = [
        (title, about, [entries[sample.name] for sample in SAMPLES if sample.group == title and sample.name in entries])
        for title, about in GROUPS.items()
    ]
    template = environment().from_string(Path(__file__).with_name("index.html.j2").read_text("utf-8"))
    return template.render(
        groups=[group for group in groups if group[2]],
        benchmarks=[(name, name.removesuffix(".html"), BENCHMARKS[name]) for name in benchmarks],
        css=Markup(page_css()),
    )
