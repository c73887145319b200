"""Document to one HTML file that loads nothing: readable without script, hostile to script in names."""

import base64
import gzip
import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from profilerkit.model.diff import Diff
from profilerkit.model.events import StepEvents
from profilerkit.model.report import Report
from profilerkit.model.trial import Trial
from profilerkit.report import json as report_json
from profilerkit.report.blocks import Document, Figure
from profilerkit.report.chart import css_variables
from profilerkit.report.html_blocks import first_screen, section
from profilerkit.report.sections import document
from profilerkit.report.sections.steps import with_events
from profilerkit.units import format_bytes

if TYPE_CHECKING:
    from markupsafe import Markup

_PLAIN_DOWNLOAD_BYTES = 48_000  # larger reports are offered for download as gzip, so that the page stays small
# A larger page, with plotly or without it, leaves out the JSON and says how to get it.
_MOST_BYTES, _MOST_BYTES_WITHOUT_PLOTLY = 2_190_000, 400_000
_SCRIPT_LEVEL = 4  # of zlib: half the time of level 7 for 4 % more bytes (plotly 6, 4.8 MB)
# Base 85 of Python's base64 module with the three characters that HTML reads replaced by three that it does not use;
# report.js has the same digits.
_DIGITS = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%:()*+-;,=.?@^_`{|}~"


def asset(name: str) -> str:
    """A style sheet or script of the package."""
    return files("profilerkit.report").joinpath("templates", name).read_text(encoding="utf-8")


def page_css() -> str:
    """Both schemes and the style sheets; paper is always light."""
    return (
        f":root{{color-scheme:light dark;{css_variables('light')}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{css_variables('dark')}}}}}\n"
        f"{asset('first.css')}{asset('report.css')}{asset('timeline.css')}"
    )


def _policy_hash(script: bytes) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(script).digest()).decode("ascii") + "'"


@lru_cache(maxsize=1)
def _plotly() -> tuple[str, int, str]:
    """The installed plotly's script as gzip in base 85, the length of the gzip in bytes, and the script's hash.

    Base 85 makes the page 120 kB smaller than base 64.
    """
    found = find_spec("plotly")  # importing it takes longer than reading its script
    assert found is not None
    assert found.origin is not None
    script = Path(found.origin).with_name("package_data").joinpath("plotly.min.js").read_bytes()
    packed = gzip.compress(script, _SCRIPT_LEVEL, mtime=0)
    return _base85(packed), len(packed), _policy_hash(script)


def _base85(data: bytes) -> str:
    """The data in base 85, with zeros behind it up to a multiple of four bytes.

    >>> _base85(b"profilerkit.")
    'aB^.EX.4V3YiV.Y'
    """
    import numpy as np

    words = np.frombuffer(data + bytes(-len(data) % 4), ">u4").astype(np.uint32)
    text = np.empty((len(words), 5), np.uint8)
    for place in range(4, -1, -1):
        words, rest = words // np.uint32(85), words
        text[:, place] = rest - words * np.uint32(85)
    return text.tobytes().translate(_DIGITS.ljust(256)).decode("ascii")


def embedded_json(value: Any) -> str:
    """JSON that cannot end its script element or be read as HTML."""
    text = msgspec.json.encode(value).decode("utf-8")
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _scripts(page: Document) -> tuple["Markup", list[str]]:
    from markupsafe import Markup

    figures = [block for one in page.sections for block in one.blocks if isinstance(block, Figure)]
    own = [asset("report.js"), *(asset(name) for name in dict.fromkeys(figure.script for figure in figures))]
    hashes = [_policy_hash(script.encode("utf-8")) for script in own]
    parts = [
        Markup('<script type="application/json" id="{}-data">{}</script>').format(
            figure.anchor,
            Markup(embedded_json(figure.data)),  # noqa: S704 - nothing in it can end its element
        )
        for figure in figures
    ]
    if any(figure.plotly for figure in figures):
        text, length, policy = _plotly()
        hashes.append(policy)
        packed = Markup('<script type="text/plain" id="plotly" data-length="{}">{}</script>')
        parts.append(packed.format(length, Markup(text)))  # noqa: S704 - the package's own, in base 85
    parts += [Markup("<script>{}</script>").format(Markup(script)) for script in own]  # noqa: S704 - the package's own
    return Markup("\n").join(parts), hashes


def page(made: Document, foot: "Markup | str" = "", after: "Markup | str" = "") -> str:
    """One HTML document; ``foot`` stands in its footer, ``after`` at the end of its content."""
    from markupsafe import Markup

    scripts, hashes = _scripts(made)
    # Nothing may be fetched, and only the report's own scripts run: a script in a name stays text twice over.
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src {' '.join(hashes)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    links = Markup("").join(
        Markup('<li><a href="#{}">{}</a></li>').format(one.id, one.short or one.title) for one in made.sections
    )
    body = Markup("\n").join(section(one) for one in made.sections)
    # Plain text: what a caller puts into it is not escaped again.
    return str(
        Markup(_PAGE).format(  # noqa: S704 - the package's own
            policy=policy,
            title=made.title,
            css=Markup(page_css()),  # noqa: S704 - the package's own
            first=first_screen(made.first),
            nav=Markup('<nav aria-label="Sections" hidden><ul>{}</ul></nav>').format(links) if made.sections else "",
            body=body,
            after=after,
            foot=foot,
            scripts=scripts,
        )
    )


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>{css}</style>
</head>
<body>
<main>
<section id="verdict" aria-labelledby="headline">{first}</section>
{nav}
{body}
{after}
</main>
<footer><p>{foot}</p></footer>
{scripts}
</body>
</html>
"""


def render(record: Report | Diff | Trial, events: Sequence[StepEvents] = ()) -> str:
    """The record as one offline HTML document; ``events`` of two steps make the timeline of a report zoom."""
    made = document(record)
    return _with_download(record, with_events(made, events)) if isinstance(record, Report) else page(made, _MADE_BY)


def _with_download(report: Report, made: Document) -> str:
    from markupsafe import Markup

    text = report_json.render(report).encode("utf-8")
    # Downloads of many runs lie in one place: their names sort by time.
    when = re.sub(r"[-:]", "", report.run.created[:16]).replace("T", "-")
    pieces = (report.run.name[:60], when, hashlib.sha256(text).hexdigest()[:8], "report")
    name = ".".join(filter(None, (re.sub(r"[^A-Za-z0-9._-]+", "-", piece).strip("-.") for piece in pieces))) + ".json"
    kind, payload = "application/json", text
    if len(text) > _PLAIN_DOWNLOAD_BYTES:
        name, kind = f"{name}.gz", "application/gzip"
        payload = gzip.compress(msgspec.json.encode(msgspec.json.decode(text)), 6, mtime=0)
    encoded = base64.b64encode(payload).decode("ascii")
    link = Markup('<a href="data:{};base64,{}" download="{}">Download the JSON</a> ({})')
    whole = page(made, link.format(kind, encoded, name, format_bytes(len(payload))))
    packed = len(_plotly()[0]) if 'id="plotly"' in whole else 0
    if len(whole.encode("utf-8")) > min(_MOST_BYTES, packed + _MOST_BYTES_WITHOUT_PLOTLY):
        return page(made, "The JSON is too large for this page: profilerkit analyze -f json writes it.")
    return whole


_MADE_BY = "Made by profilerkit."


#: Text keeps the notebook's own colour. Dark themes of JupyterLab, VS Code and Colab are known by these attributes.
_IN_A_CELL = "--text:inherit;--muted:inherit;--page:transparent"
_DARK_NOTEBOOKS = ",".join(
    f"{of} .pk-first" for of in ('[data-jp-theme-light="false"]', ".vscode-dark", "[theme=dark]")
)


def render_verdict(record: Report | Diff | Trial) -> str:
    """The first screen for a notebook cell: no script, no ids, colours of the surrounding page."""
    from markupsafe import Markup

    css = (
        f".pk-first{{{css_variables('light')};{_IN_A_CELL}}}\n"
        f"{_DARK_NOTEBOOKS}{{{css_variables('dark')};{_IN_A_CELL}}}\n{asset('first.css')}"
    )
    cell = Markup("<div><style>{}</style>{}</div>").format(
        Markup(css),  # noqa: S704 - the package's own
        first_screen(document(record, whole=False).first, is_page=False),
    )
    return str(cell)
