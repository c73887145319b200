"""The frame of the pages that the scripts write: offline, escaped, in the colours and blocks of a report."""

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from profilerkit.report.chart import FILLS, INKS
from profilerkit.report.html_blocks import bar, block, words

#: What a page's policy says in place of the hashes until it is sealed.
_PLACE = "SCRIPT-HASHES"
_HERE = Path(__file__).parent


def environment(**filters: Callable[..., str]) -> Environment:
    """Templates in which ``block`` writes a table or chart and ``bar`` a bar; everything put into them is escaped."""
    made = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"prose": words, "units": words, **filters}
    made.globals |= {"block": block, "bar": bar, "schemes": {name: _scheme(name) for name in ("light", "dark")}}
    return made


def _scheme(name: str) -> Markup:
    """Colours as CSS custom properties."""
    colours = {**INKS[name], **FILLS[name]}  # type: ignore[index]
    return Markup(";".join(f"--{key}:{value}" for key, value in colours.items()))


def with_plotly(template: str, made: Environment, figures: Any, **values: Any) -> str:
    """The page of a template that draws ``figures`` with plotly, which it carries packed."""
    from plotly.offline import get_plotlyjs  # noqa: PLC0415 - 5 MB that few pages need

    plotly = get_plotlyjs()
    packed = base64.b64encode(gzip.compress(plotly.encode("utf-8"), 9, mtime=0)).decode("ascii")
    text = json.dumps(figures)
    for char in "<>&\u2028\u2029":  # nothing in it can end its element
        text = text.replace(char, f"\\u{ord(char):04x}")
    page = made.get_template(template).render(packed_script=Markup(packed), figures=Markup(text), **values)
    return sealed(page, plotly)


def sealed(page: str, *unpacked: str) -> str:
    """The page with the hashes of its plain scripts, and of those that it unpacks, in its policy."""
    scripts = [*re.findall(r"<script>(.*?)</script>", page, re.DOTALL), *unpacked]
    digests = [base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii") for script in scripts]
    return page.replace(_PLACE, " ".join(f"'sha256-{digest}'" for digest in digests), 1)


def number(value: float, digits: int = 3) -> str:
    """Three significant digits, thousands set apart."""
    short = float(f"{value:.{digits}g}")
    return f"{short:,.0f}" if abs(short) >= 100 else f"{short:g}"
