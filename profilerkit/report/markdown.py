"""Document to Markdown of at most 6 kB for a comment: the verdict and the first fixes, everything else folded."""

import re
from collections.abc import Iterator, Sequence
from urllib.parse import quote

from profilerkit.model.diff import Diff, Gate
from profilerkit.model.report import Report
from profilerkit.model.trial import Trial
from profilerkit.report import blocks
from profilerkit.report.findings import first_sentence
from profilerkit.report.inert import clip, code_spans
from profilerkit.report.sections import document
from profilerkit.report.wording import cell_text, segment_text

LIMIT_BYTES = 6_000  #: size that a comment may take
#: Each finds the comment to update on the next run.
REPORT_MARKER, DIFF_MARKER, GATES_MARKER, TRIAL_MARKER = (
    f"<!-- profilerkit-{kind} -->" for kind in ("report", "diff", "check", "try")
)
_FIXES, _ROWS, _CELL, _LINE, _SHORT, _CODE = 3, 12, 90, 300, 160, 300
_BAR_CELLS = 20
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;", "@": "@\u200b"}
_ESCAPED = re.compile(r"[\\`*_\[\]~#$]")
_PAGE = "Everything else is in the report's HTML page"


def render(record: Report | Diff | Trial, *, page: str = "") -> str:
    """The record as Markdown; ``page`` is the address of a report's HTML page, for a link."""
    made = document(record)
    if not isinstance(record, Report):
        marker = DIFF_MARKER if isinstance(record, Diff) else TRIAL_MARKER
        lines = [marker, *_first(made.first)]
        for one in made.sections[:2]:
            lines += ["", f"**{plain(one.title)}**", "", *(line for block in one.blocks for line in _block(block))]
        return _whole(lines, made.sections[2:])
    first = made.first
    lines = [REPORT_MARKER, *_first(first)]
    for number, found in enumerate(first.fixes[:_FIXES], start=1):
        saves = f" ({found.saves})" if found.saves else ""
        where = f", at {prose(found.where, _LINE)}" if found.where else ""
        lines += [
            "",
            f"{number}. **{prose(first_sentence(found.fix), _SHORT)}**{plain(saves)}{where}",
            *_fence(found.code),
        ]
    if not first.fixes and first.advice:
        lines += ["", f"**{prose(first.advice, _LINE)}**", *([prose(first.because, _LINE)] if first.because else [])]
        lines += _fence(blocks.Code(first.command) if first.command else None)
    link = f"[{_PAGE}]({quote(page, safe='/:?#=&%')})" if page else f"{_PAGE}: `profilerkit analyze RUN -f html`"
    return _whole([*lines, "", f"{link}."], made.sections)


def render_gates(name: str, headline: str, gates: Sequence[Gate]) -> str:
    """The gates of one run as Markdown, below the name of the run and the headline of its verdict."""
    from profilerkit.report.diff_document import gate_table

    failed = sum(gate.status == "failed" for gate in gates)
    word = f"{failed} of {len(gates)} budgets exceeded" if failed else "Within budget"
    lines = [GATES_MARKER, f"### {word}: {plain(clip(name, 80))}", "", prose(headline, 400), ""]
    table = gate_table(gates)
    return _whole([*lines, *(_table(table, len(gates)) if table else ())], ())


def plain(text: str) -> str:
    """Text that Markdown, HTML, tables, mentions and automatic links do not change."""
    text = "".join(_ENTITIES.get(char, char) for char in text)
    # Entities contain "#": escape what Markdown reads only where no entity stands.
    pieces = re.split(r"(&#?\w+;)", text)
    escaped = "".join(piece if index % 2 else _ESCAPED.sub(r"\\\g<0>", piece) for index, piece in enumerate(pieces))
    return escaped.replace("://", "&#58;//").replace("www.", "www&#46;")


def prose(text: str, limit: int) -> str:
    """Text of at most ``limit`` characters, in which paired backticks stay code."""
    return "".join(_code(piece) if is_code else plain(piece) for is_code, piece in code_spans(clip(text, limit)))


def _code(text: str) -> str:
    """A code span; a pipe would end a table cell even inside one, so such text is written plain."""
    return plain(text) if not text.strip() or "|" in text or "`" in text else f"`{text}`"


def _fence(code: blocks.Code | None) -> list[str]:
    """Code to paste, in a fence longer than any within it."""
    if code is None:
        return []
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall(r"`+", code.text))) if "`" in code.text else "```"
    return ["", fence + "python", *clip(code.text, _CODE).splitlines(), fence]


def _first(first: blocks.First) -> list[str]:
    sure = f" · confidence {first.confidence}" if first.confidence else ""
    lines = [plain(clip(first.lead, _LINE)), ""] if first.lead else []
    kind = f" · {plain(first.kind)}" if first.kind else ""
    lines += [f"### {first.shape} {first.word}{kind}{sure}", "", f"**{prose(first.headline, _SHORT)}**", ""]
    for bar in first.bars:
        before = f"{plain(bar.caption)}: " if len(first.bars) > 1 else ""
        names = " · ".join(map(segment_text, bar.segments))
        lines.append(f"{before}{_bar(bar)} {names}")
        lines.append("")
    lines += [f"{plain(clip(line, _LINE))}\n" for line in first.lines[:2]]
    return lines


def _bar(bar: blocks.Bar) -> str:
    filled = round(bar.segments[0].ratio * _BAR_CELLS) if bar.segments else 0
    return "█" * filled + "░" * (_BAR_CELLS - filled)


def _size(lines: Sequence[str]) -> int:
    return sum(len(line.encode("utf-8", "replace")) + 1 for line in lines)


def _whole(lines: list[str], sections: Sequence[blocks.Section]) -> str:
    for one in sections:
        body = [line for block in one.blocks for line in _block(block)]
        title = plain(" · ".join(piece for piece in (one.title, one.summary) if piece))
        folded = ["", f"<details><summary>{title}</summary>", "", *body, "", "</details>"]
        if _size([*lines, *folded]) <= LIMIT_BYTES:
            lines += folded
    text = "\n".join(lines).strip("\n") + "\n"
    while len(text.encode("utf-8", "replace")) > LIMIT_BYTES:
        text = text[: -max(1, len(text) // 50)].rstrip("\n") + "\n"
    return text


def _block(block: blocks.Block) -> Iterator[str]:
    if isinstance(block, blocks.Text):
        yield from (prose("".join(cell_text(piece) for piece in block.pieces), _LINE), "")
    elif isinstance(block, blocks.Heading):
        yield from (f"**{plain(block.text)}**", "")
    elif isinstance(block, blocks.Facts):
        for fact in block.rows:
            note = f" · {plain(fact.note)}" if fact.note else ""
            yield f"- {plain(fact.label)}: **{plain(cell_text(fact.value, _CELL))}**{note}"
        yield ""
    elif isinstance(block, blocks.Table):
        yield from _table(block)
    elif isinstance(block, blocks.Bar):
        yield from (plain(cell_text(block)), "")
    elif isinstance(block, blocks.Code):
        yield from _fence(block)
    elif isinstance(block, blocks.Chart):
        yield from (plain(block.title), "", *_table(block.table))
    elif isinstance(block, blocks.Figure):
        yield from (plain(block.title), "", *(_block(block.static) if block.static else ()))
    else:
        yield from _finding(block)


def _finding(found: blocks.Finding, also: str = "") -> Iterator[str]:
    facts = (found.saves, f"confidence {found.confidence}", found.scope, found.rule)
    yield f"**{also}{prose(found.title, _LINE)}** · {plain(' · '.join(fact for fact in facts if fact))}"
    yield ""
    if found.fix:
        yield from (prose(found.fix, _LINE), "")
    for row in found.evidence:
        yield f"- {row.id} {plain(row.label)}: {plain(row.value)}"
    yield ""
    for other in found.others:
        yield from _finding(other, "Or: ")


def _table(table: blocks.Table, most: int = _ROWS) -> Iterator[str]:
    rule = [":--" if number < table.text_columns else "--:" for number in range(len(table.columns))]
    rows = [[prose(cell_text(cell, _CELL), _LINE) for cell in row] for row in table.rows[:most]]
    if table.title:
        yield from (f"**{plain(table.title)}**", "")
    for cells in (tuple(map(plain, table.columns)), rule, *rows):
        yield f"| {' | '.join(cells)} |"
    yield ""
    if len(table.rows) > most:
        yield from (f"{len(table.rows) - most} more.", "")
