"""From the samples' JSON to their pages, and the page that names them; the same JSON always gives the same bytes."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from markupsafe import Markup
from overhead_benchmark.method import earlier
from pages import environment

from gallery import legend
from gallery.document import contention, load
from gallery.samples import GROUPS, SAMPLES, Sample
from profilerkit.model.diff import Diff
from profilerkit.report import html
from profilerkit.report.blocks import Bar, First
from profilerkit.report.diff_document import document_of_diff
from profilerkit.report.html import page_css
from profilerkit.report.sections import document

#: Below the directory of the reports.
JSON_DIRECTORY = "samples"
INDEX = "index.html"
OVERHEAD = "overhead.html"
#: What the scores and figures in each of the other pages are about; named where the page is there.
BENCHMARKS = {
    "accuracy.html": "Real runs with known faults, every fix really applied: is the verdict right, and how far are "
    "predicted savings from measured ones? Beside three other tools.",
    "accuracy_second.html": "The same runs on a faster processor, without the other tools. The intervals of savings "
    "are made from the errors of both.",
    "accuracy_third.html": "A third time, with the present code and the intervals that the first two gave.",
    "tried.html": "15 of the same runs: the saving predicted, measured by profilerkit try, and by a stopwatch.",
    "simulated.html": "200 simulated runs of each of 28 faults, and healthy ones, whose truth is known to the event.",
    "whatifs.html": "Savings that the replay foretells, held against the simulated run with the cause removed.",
    "workers.html": "The number of DataLoader workers that is proposed beside the best one measured.",
    OVERHEAD: "What recording costs a training step, and what start and end of capture take.",
    "speed.html": "Reading and analysing traces of 100 MB to 1 GB beside json.load and other tools.",
    "gpu_truth.html": "What is said on a GPU beside what is true there: the device's clock, verdicts, savings, NVML.",
    "field.html": "Recordings that others made on GPUs: verdict, step, late rank and saving beside what is true.",
    "scale.html": "Summaries of up to 16,384 simulated ranks reduced to one report: time and memory.",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A sample as the index page shows it: its verdict in a line and a sentence, and the bars of its steps.

    Attributes:
        contention: what other programs took of the processors meanwhile; may be empty.
    """

    name: str
    shows: str
    contention: str
    tone: str
    shape: str
    kind: str
    headline: str
    bars: tuple[Bar, ...]


def render(reports: Path) -> Iterator[tuple[str, str]]:
    """Name and text of every page whose JSON is there, and of the index page last."""
    entries = {}
    for sample in SAMPLES:
        source = reports / JSON_DIRECTORY / f"{sample.name}.json"
        if source.exists():
            page, entries[sample.name] = _rendered(sample, source.read_bytes())
            yield f"{sample.name}.html", page
    yield INDEX, _index(entries, {name: _told(reports / name) for name in BENCHMARKS if (reports / name).exists()})


def _rendered(sample: Sample, text: bytes) -> tuple[str, Entry]:
    """The page of a sample, and its entry of the index."""
    found = load(text)
    about = (sample.name, sample.shows, contention(found))
    if isinstance(found, Diff):
        return html.render(found), _entry(about, document_of_diff(found).first)
    return html.render(found), _entry(about, document(found).first)


def _entry(about: tuple[str, str, str], first: First) -> Entry:
    sure = f" · confidence {first.confidence}" if first.confidence else ""
    return Entry(*about, first.tone, first.shape, f"{first.word}{sure}", first.headline, first.bars)


def _told(page: Path) -> str:
    """What a benchmark is about, and whether its figures come from an earlier method."""
    source = page.with_suffix(".json")
    label = earlier(msgspec.json.decode(source.read_bytes())) if page.name == OVERHEAD and source.exists() else ""
    return f"{BENCHMARKS[page.name]} {label}".rstrip()


def _index(entries: dict[str, Entry], benchmarks: dict[str, str]) -> str:
    """The index page, in the look of a report."""
    groups = [
        (title, about, [entries[sample.name] for sample in SAMPLES if sample.group == title and sample.name in entries])
        for title, about in GROUPS.items()
    ]
    template = environment().from_string(Path(__file__).with_name("index.html.j2").read_text("utf-8"))
    return template.render(
        groups=[group for group in groups if group[2]],
        benchmarks=[(name, name.removesuffix(".html"), about) for name, about in benchmarks.items()],
        css=Markup(page_css()),
        legend=legend,
    )
