"""Report to one HTML file that loads nothing: readable without script, hostile to script in names."""

import base64
import gzip
import hashlib
import re
from functools import lru_cache
from typing import Any

import msgspec

from profilerkit.model.report import Report
from profilerkit.report import json as report_json
from profilerkit.report.breakdown import judged_rank
from profilerkit.report.charts import charts_of
from profilerkit.report.figures import colour_names, memory_paths, step_figure, strip_paths, waterfall_paths
from profilerkit.report.memory import columns_of
from profilerkit.report.palette import FILLS, label_on
from profilerkit.report.records import EvidenceRow, View
from profilerkit.report.templating import asset, environment, page_css
from profilerkit.report.timeline import timeline_of
from profilerkit.report.view import build
from profilerkit.units import format_bytes, format_ns

# Larger reports are offered for download as gzip, so that the page stays small.
_PLAIN_DOWNLOAD_BYTES = 48_000
# A larger page leaves out the JSON and says how to get it.
_MOST_PAGE_BYTES = 400_000
_MOST_EXPLORER_BYTES = 2_200_000
_STEP_WIDTH_PX = 26
_SCRIPT_LEVEL = 7
# Base 85 with the three characters that HTML reads replaced by three that it does not use; report.js has the table.
_B85_TO_HTML = str.maketrans("<>&", ",.:")


class _Download(msgspec.Struct, frozen=True):
    """The report's JSON as a link; ``href`` is empty when it is too large for the page."""

    href: str
    name: str
    size: str


class _Strip(msgspec.Struct, frozen=True):
    """The static figure: paths by colour key, its box, and its labels."""

    legend: list[tuple[str, str]]
    pale: bool
    cut: bool
    paths: list[tuple[str, str]]
    width: int
    max_width: int
    median: str
    top: str
    first: str
    last: str
    group: int


class _MemoryStrip(msgspec.Struct, frozen=True):
    """The memory of every step: paths by class, its box, its labels, and where the capacity lies (may be empty)."""

    paths: list[tuple[str, str]]
    width: int
    max_width: int
    top: str
    capacity: str
    first: str
    last: str


class _Packed(msgspec.Struct, frozen=True):
    """A script as gzip in base 85, the length of the gzip in bytes, and the script's hash for the page's policy."""

    text: str
    length: int
    policy_hash: str


@lru_cache(maxsize=1)
def _figure_script() -> _Packed:
    """The installed plotly's own script. Base 85 makes the page 120 kB smaller than base 64.

    Level 7 makes it 3 kB smaller than 6 in 5 % more time; level 9 1 kB smaller still in a third more (zlib 1.2.13).
    """
    from plotly.offline import get_plotlyjs

    script = get_plotlyjs().encode("utf-8")
    packed = gzip.compress(script, _SCRIPT_LEVEL, mtime=0)
    text = base64.b85encode(packed, pad=True).decode("ascii").translate(_B85_TO_HTML)
    return _Packed(text, len(packed), _policy_hash(script))


def _policy_hash(script: bytes) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(script).digest()).decode("ascii") + "'"


def _policy(script_hashes: list[str]) -> str:
    """Nothing may be fetched, and only the report's own scripts run: a script in a name stays text twice over."""
    scripts = " ".join(script_hashes)
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src {scripts}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _embedded_json(value: Any) -> str:
    """JSON that cannot end its script element or be read as HTML."""
    text = msgspec.json.encode(value).decode("utf-8")
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _download(report: Report) -> _Download:
    text = report_json.render(report).encode("utf-8")
    # Downloads of many runs lie in one place: their names sort by time.
    when = re.sub(r"[-:]", "", report.run.created[:16]).replace("T", "-")
    pieces = (report.run.name[:60], when, hashlib.sha256(text).hexdigest()[:8], "report")
    stem = ".".join(filter(None, (re.sub(r"[^A-Za-z0-9._-]+", "-", piece).strip("-.") for piece in pieces)))
    if len(text) <= _PLAIN_DOWNLOAD_BYTES:
        name, kind, payload = f"{stem}.json", "application/json", text
    else:
        packed = gzip.compress(msgspec.json.encode(msgspec.json.decode(text)), 9, mtime=0)
        name, kind, payload = f"{stem}.json.gz", "application/gzip", packed
    encoded = base64.b64encode(payload).decode("ascii")
    return _Download(f"data:{kind};base64,{encoded}", name, format_bytes(len(payload)))


def _strip(report: Report) -> _Strip | None:
    """The static figure; ``None`` without steps."""
    timeline = timeline_of(report)
    if not timeline.columns:
        return None
    paths, width, group = strip_paths(timeline)
    used = {key.split(" ")[0] for key in paths}
    return _Strip(
        legend=[(key, name) for key, name in colour_names().items() if key in used],
        pale=any(key.endswith("pale") for key in paths),
        cut="mark" in paths,
        paths=sorted(paths.items()),
        width=width,
        max_width=width // 5 * _STEP_WIDTH_PX,
        median=f"{100 - 100 * min(1.0, timeline.median_ns / timeline.cut_ns):.4g}",
        top=format_ns(timeline.cut_ns),
        first=str(timeline.columns[0].index),
        last=str(timeline.columns[-1].index),
        group=group,
    )


def _memory_strip(report: Report) -> _MemoryStrip | None:
    """The static figure of memory; ``None`` below two steps."""
    columns = columns_of(report.memory)
    if columns is None:
        return None
    paths, width = memory_paths(columns)
    height = 100 - 100 * (columns.capacity_bytes or 0) / columns.top_bytes
    return _MemoryStrip(
        paths=sorted(paths.items()),
        width=width,
        max_width=width // 5 * _STEP_WIDTH_PX,
        top=format_bytes(columns.top_bytes),
        capacity=f"{height:.4g}" if columns.capacity_drawn else "",
        first=str(columns.rows[0].index),
        last=str(columns.rows[-1].index),
    )


def _known(view: View) -> tuple[EvidenceRow, ...]:
    """Every row that a number may lead to, what the report states itself first; a note is evidence of its numbers."""
    own = (row for card in view.cards for row in (*card.savings, *card.evidence))
    notes = (
        EvidenceRow(f"note-{number}", "Note", note, "", "", "derived", "")
        for number, note in enumerate(view.notes, start=1)
    )
    return (*view.stated, *own, *notes)


def _sections(view: View) -> list[tuple[str, str]]:
    """Anchors and names of the sections that the page has, in its order."""
    present = [
        ("steps", "Where the time goes", True),
        ("changes", "What to change", bool(view.cards or view.cost.title or view.probes.facts)),
        ("others", "Why not the others", bool(view.others or view.refuted_by)),
        ("ranks", "Ranks", bool(view.ranks)),
        ("logs", "Logs", bool(view.logs.devices or view.logs.snapshots)),
        ("memory", "Memory", bool(view.memory.facts or view.oom.facts)),
        (
            "kernels",
            "Kernels and communication",
            bool(view.compute or view.kernels or view.collectives or view.recorded or view.models or view.windows),
        ),
        ("trust", "Trust", True),
        ("rules", "Other rules", bool(view.outcomes)),
        ("run", "Run", True),
    ]
    return [(anchor, name) for anchor, name, shown in present if shown]


def _cell_css() -> str:
    """The notebook cell's style: the light fills, because a notebook's theme is not the system's."""
    rules = "".join(
        f".profilerkit-verdict .{family}{{background:{fill};color:{label_on(fill)}}}\n"
        for family, fill in FILLS["light"].items()
    )
    return asset("verdict.css") + rules


def render(report: Report, *, explorer: bool = True) -> str:
    """The report as one offline HTML document.

    Args:
        report: what to show.
        explorer: include plotly's script (about 2 MB) for the zoomable figure; the static figure is always there.
    """
    download = _download(report)
    page = _page(report, explorer, download)
    if len(page.encode("utf-8")) > (_MOST_EXPLORER_BYTES if explorer else _MOST_PAGE_BYTES):
        page = _page(report, explorer, msgspec.structs.replace(download, href=""))
    return page


def _page(report: Report, explorer: bool, download: _Download) -> str:
    from markupsafe import Markup

    view, strip, js = build(report), _strip(report), asset("report.js")
    hashes = [_policy_hash(js.encode("utf-8"))]
    step_rows = frozenset(view.steps.table.anchors if view.steps.table else ())
    packed, figure = None, ""
    if explorer and strip is not None:
        packed = _figure_script()
        hashes.append(packed.policy_hash)
        figure = _embedded_json(step_figure(timeline_of(report)))
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            view=view,
            strip=strip,
            memory_strip=_memory_strip(report),
            charts=charts_of(report),
            waterfall_paths=waterfall_paths(view.waterfall.bars),
            sections=_sections(view),
            step_rows=step_rows,
            steps_of={"": step_rows, f"rank {judged_rank(report)}": step_rows},
            told=next((card for card in view.cards if card.evidence == view.headline_evidence), None),
            refuting=next((card for card in view.cards if card.confirm == view.refuted_by), None),
            known=_known(view),
            download=download,
            csp=_policy(hashes),
            # Everything below is the package's own text, or JSON in which nothing can end its element.
            css=Markup(page_css()),  # noqa: S704
            js=Markup(js),  # noqa: S704
            figure_json=Markup(figure),  # noqa: S704
            packed_script=Markup(packed.text) if packed else "",  # noqa: S704
            packed_length=packed.length if packed else 0,
        )
    )


def render_verdict(report: Report) -> str:
    """The verdict as HTML for a notebook cell: no script, no ids, colours of the surrounding page."""
    from markupsafe import Markup

    template = environment().get_template("verdict.html.j2")
    return template.render(view=build(report), css=Markup(_cell_css()))  # noqa: S704
