"""What must hold for a page: nothing leaves it, nobody is kept out, nothing is cut off, and it is small."""

import re
from collections.abc import Iterator, Sequence
from html import unescape
from pathlib import Path
from typing import Any

from report_check.axe import Axe, violations
from report_check.chromium import Heard, Mode, Page

MOST_BYTES = 400_000
MOST_BYTES_WITH_FIGURES = 2_200_000
#: Budgets of a page as it opens at 1280 × 800: tokens above the fold, screens, words, and pages of A4.
MOST_TOKENS, MOST_SCREENS, MOST_WORDS, MOST_PAGES = 90, 5.0, 900, 8
MOST_SECONDS = 1.0

WIDE, DARK = Mode(1280, 800, "light"), Mode(1280, 800, "dark")
NARROW, NARROW_DARK = Mode(420, 900, "light"), Mode(420, 900, "dark")
#: A small phone.
PHONE = Mode(360, 740, "light")
#: A4, which is 794 by 1123 px, without the margins of 14 mm that the style sheet asks for.
PAPER = Mode(688, 1017, "light", is_paper=True)
MODES = (WIDE, NARROW, PHONE, PAPER, DARK, NARROW_DARK)
#: What most mistakes show in, in a third of the time; both schemes, or their difference would not be seen.
BRIEF_MODES = (WIDE, PAPER, NARROW_DARK)
#: Two widths and both schemes: what axe-core sees depends on each, and it is what takes the time.
_AXE_MODES = (WIDE, NARROW_DARK)

_MEASURE = Path(__file__).with_name("measure.js").read_text("utf-8")
#: A page keeps the figures' script packed, as text.
_FIGURE = re.compile(r'<script type="text/plain"[^>]*>.*?</script>', re.DOTALL)
_SCRIPTS = re.compile(r"<script[^>]*>.*?</script>", re.DOTALL)
_TO_A_HOST = re.compile(r"""<[^>]*\s(?:src|href|action|srcset|poster|data)\s*=\s*["']?\s*(?:[a-z]+:)?//""", re.I)
_OPEN_ALL = "document.querySelectorAll('details').forEach(box => { box.open = true; }); scrollTo(0, 0)"
_CLOSE_ALL = f"{_OPEN_ALL.replace('true', 'false')}"
#: A page with a packed script draws its figures some time after it is loaded.
READY = "new Promise(go => requestAnimationFrame(() => requestAnimationFrame(go)))"
#: The first screen as a cell of JupyterLab, whose style sheet floats lists and sets its own tables and code.
_NOTEBOOK = """(() => {
  const rules = `.jp dl dt{float:left;clear:left;width:20%}
    .jp dl dd{float:left;width:80%}.jp p{margin:0 0 1em}
    .jp table{table-layout:fixed;font-size:12px;margin:0 auto 1em}
    .jp pre,.jp code{background:#eee;padding:1px 4px;margin:0}
    .jp h1{font-size:2em;margin:1.2em 0 .8em}.jp{font-size:14px;line-height:1.3}`;
  const style = document.createElement("style");
  style.textContent = rules;
  document.head.append(style);
  const cell = document.createElement("main");
  cell.className = "jp";
  cell.append(document.querySelector(".pk-first"));
  document.body.replaceChildren(cell);
})()"""


def source_problems(text: str) -> Iterator[str]:
    """What the file itself shows: its policy, its addresses, its size in bytes."""
    found = re.search(r"""http-equiv="Content-Security-Policy"\s+content="([^"]*)\"""", text)
    if found is None:
        yield "there is no content security policy"
    else:
        yield from policy_problems(unescape(found.group(1)))
    if _TO_A_HOST.search(_SCRIPTS.sub("", text)):
        yield "an attribute names a host"
    style = "".join(re.findall(r"<style>(.*?)</style>", text, re.DOTALL))
    if "@import" in style or re.search(r"url\((?!\s*[\"']?(?:data:|#))", style):
        yield "the style sheet asks for a file"
    size, most = len(text.encode("utf-8")), MOST_BYTES_WITH_FIGURES
    bare = len(_FIGURE.sub("", text).encode("utf-8"))
    if size > most:
        yield f"{size} bytes, more than {most}"
    if bare > MOST_BYTES:
        yield f"{bare} bytes without the figures' script, more than {MOST_BYTES}"


def policy_problems(policy: str) -> Iterator[str]:
    """What a content security policy allows that no report needs."""
    rules = {name: sources for name, _, sources in (rule.strip().partition(" ") for rule in policy.split(";"))}
    if rules.get("default-src") != "'none'":
        yield "the policy does not forbid by default"
    for name, sources in rules.items():
        for source in sources.split():
            is_inline_style = name == "style-src" and source == "'unsafe-inline'"
            if not (source in {"'none'", "data:"} or source.startswith("'sha256-") or is_inline_style):
                yield f"the policy allows {name} {source}"


def heard_problems(heard: Heard) -> Iterator[str]:
    """What the page did that a reader would not see."""
    yield from (f"the page asked for {address}" for address in heard.requests)
    yield from (f"the console says: {line}" for line in heard.console)
    yield from (f"a dialog opened: {line}" for line in heard.dialogs)


def document_problems(seen: dict[str, Any], text: str) -> Iterator[str]:
    """What is wrong with the document in any window."""
    title = re.search(r"<title>(.*?)</title>", text, re.DOTALL)
    if title is None or " ".join(unescape(title.group(1)).split()) != seen["title"]:
        yield f"the title became {seen['title']!r}"
    if not seen["lang"]:
        yield "the page has no lang"
    if seen["headings"] != 1:
        yield f"{seen['headings']} elements are h1"
    wanted = ["main"] if not seen["is_report"] else ["main", "footer"]
    if seen["is_report"] and not seen["is_diff"]:
        wanted.append("nav")
    yield from (f"the landmark {tag} is missing" for tag in wanted if tag not in seen["landmarks"])
    if seen["repeated"]:
        yield f"{seen['repeated']} ids are not unique"
    for key, what in {
        "dead": "a link leads to nothing: #{}",
        "handlers": "an attribute runs script: {}",
        "foreign": "an element that no report has: {}",
        "strange": "a control character is shown: {}",
        "dashes": "a cell says nothing: {}",
        "empty": "nothing is in {}",
    }.items():
        yield from (what.format(place) for place in sorted(set(seen[key])))


def window_problems(seen: dict[str, Any]) -> Iterator[str]:
    """What is wrong with how a window shows the page."""
    if seen["page_width"] > seen["width"]:
        yield f"the page is {seen['page_width']} px wide in a window of {seen['width']} px"
    yield from (f"cut off: {what}" for what in sorted(set(seen["clipped"])))
    yield from (f"one over the other: {what}" for what in sorted(set(seen["overlaps"])))
    yield from (f"folded: {what}" for what in sorted(set(seen["folded"])))


def budget_problems(seen: dict[str, Any], page: Page) -> Iterator[str]:
    """Where a page says more, as it opens, than a reader takes in."""
    if len(seen["tokens"]) > MOST_TOKENS and not seen["is_diff"]:
        yield f"{len(seen['tokens'])} tokens above the fold, more than {MOST_TOKENS}: {' '.join(seen['tokens'])}"
    if seen["screens"] > MOST_SCREENS:
        yield f"{seen['screens']:.1f} screens, more than {MOST_SCREENS:g}"
    if seen["words"] > MOST_WORDS:
        yield f"{seen['words']} words, more than {MOST_WORDS}"
    if seen["first_code"] > seen["height"]:
        yield f"the first code ends at {seen['first_code']:.0f} px, below the first screen"
    seconds = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd / 1000")
    if seconds > MOST_SECONDS:
        yield f"it opens in {seconds:.1f} s, more than {MOST_SECONDS:g}"
    pages = page.pages()
    if pages > MOST_PAGES:
        yield f"{pages} printed pages, more than {MOST_PAGES}"


def problems(
    page: Page, file: Path, axe: Axe, pictures: Path | None = None, modes: Sequence[Mode] = MODES
) -> list[str]:
    """Everything that is wrong with the report in ``file``; empty when nothing is.

    Args:
        page: the browser's tab.
        file: the report.
        axe: its checks are left out when it is missing; the caller says so.
        pictures: where to write what each window shows first.
        modes: the windows; the file is opened anew where the scheme changes.
    """
    text = file.read_text("utf-8")
    wrong = list(source_problems(text))
    backgrounds, scheme = set(), ""
    for mode in modes:
        if mode.scheme != scheme:
            page.open(file, mode)
            page.evaluate(READY)
        else:
            page.show(mode)
            page.evaluate(_CLOSE_ALL)
        scheme = mode.scheme
        if pictures is not None:
            (pictures / f"{file.stem}.{mode.width}.{mode.scheme}.png").write_bytes(page.picture())
        closed = page.evaluate(_MEASURE) if mode is WIDE else None
        # Nobody can open a box on paper.
        if not mode.is_paper:
            page.evaluate(_OPEN_ALL)
        seen = page.evaluate(_MEASURE)
        found = [*document_problems(seen, text), *window_problems(seen)]
        if closed is not None and seen["is_report"]:
            found += budget_problems(closed, page)
            page.show(mode)
        if axe.script and mode in _AXE_MODES:
            found += violations(page, axe)
        found += heard_problems(page.heard())
        wrong += [f"{mode}: {problem}" for problem in found]
        backgrounds.add((seen["background"], seen["body_background"]))
    if any(mode is NARROW for mode in modes) and "pk-first" in text:
        page.open(file, NARROW)
        page.evaluate(_NOTEBOOK)
        wrong += [f"in a notebook: {problem}" for problem in window_problems(page.evaluate(_MEASURE))]
    if len(backgrounds) != len({mode.scheme for mode in modes}):
        wrong.append("light and dark do not differ")
    return wrong
