"""Report to text for a terminal: at most ``width`` columns, plain ASCII when asked, colour never the only carrier."""

from profilerkit.model.report import Report
from profilerkit.report.findings import evidence_in_words, evidence_numbers
from profilerkit.report.page import NARROW, STYLES, Page, bar
from profilerkit.report.records import Card, View
from profilerkit.report.view import build

# Ranks shown of those that cause waiting.
_LEDGER_ROWS = 8
# Causes of lost time shown, and findings beside them.
_COST_ROWS = 4
# Findings named of those that are not among the top changes.
_OTHER_FINDINGS = 8
# Devices and snapshots shown of logs.
_LOG_ROWS = 16
# Lines of Python shown of what was in use at the peak.
_LIVE_ROWS = 4


def _verdict(page: Page, view: View) -> None:
    page.line((view.run_name, "dim"))
    page.line(
        (f"{view.kind.shape} {view.kind.word}", STYLES[view.kind.tone]), (view.kind.text[len(view.kind.word) :], "")
    )
    page.line((view.headline.replace("`", ""), "bold"))
    for limit in view.limits:
        page.line((limit, "yellow"))
    page.line((view.consequence.replace("`", ""), ""))
    page.blank()
    if page.width < NARROW:
        for tile in view.tiles:
            page.line((f"{tile.label}: ", ""), (tile.value, "bold"), (f" · {tile.note}" if tile.note else "", "dim"))
        return
    columns = (("Number", False), ("Value", True), ("Note", False))
    page.table(columns, [((t.label, ""), (t.value, "bold"), (t.note, "dim")) for t in view.tiles])


def _parts(page: Page, view: View) -> None:
    page.blank()
    page.line(("Where the step goes", "bold"))
    if not view.bar:
        page.line((view.parts_missing, ""))
        return
    bar(page, view.bar)
    page.line((view.bar_caption, "dim"))
    fills = page.fills
    rows = [
        ((f"{fills[part.family]} {part.label}", ""), (part.time, ""), (part.share, ""), (part.source, "dim"))
        for part in view.parts
    ]
    page.table((("Part", False), ("Time", True), ("Share", True), ("Source", False)), rows)
    if view.input_missing:
        page.line((view.input_missing, "yellow"))


def _wall(page: Page, view: View) -> None:
    """The whole run by stage."""
    if not view.wall.title:
        return
    page.blank()
    page.line(("The whole run", "bold"))
    page.line((view.wall.title, ""))
    bar(page, view.wall.bar)
    page.line((view.wall.caption, "dim"))
    fills = page.fills
    columns = [("Stage", False), ("Time", True), ("Share", True), ("Source", False)]
    rows = [
        [(f"{fills[s.family]} {s.label}", ""), (s.time, ""), (s.share, ""), (s.source, "dim")] for s in view.wall.bar
    ]
    if page.width >= NARROW:
        columns.append(("What", False))
        rows = [[*row, (s.detail, "dim")] for row, s in zip(rows, view.wall.bar, strict=True)]
    page.table(columns, rows)


def _measured(page: Page, view: View) -> None:
    """What the figures of the HTML report say, in a sentence each."""
    titles = [("Steps", view.steps.title), ("Memory", view.memory.title)]
    known = [(name, title) for name, title in titles if title]
    if known:
        page.blank()
    for name, title in known:
        page.line((f"{name}: ", "bold"), (title, ""))


def _change(page: Page, number: int, card: Card) -> None:
    page.line(
        (f"{number}. {card.shape} ", STYLES[card.tone]),
        (card.title.replace("`", ""), "bold"),
        (f"  {card.rule}", "dim"),
    )
    saving = f"Est. saving {card.saving} · " if card.saving else f"Est. {card.throughput} · " if card.throughput else ""
    method = f" · {card.method}" if card.method else ""
    scope = f" · {card.scope}" if card.scope else ""
    page.line((f"{saving}confidence {card.confidence}{method}{scope}", "dim"), indent=3)
    page.line((card.fix.replace("`", ""), ""), indent=3)
    if card.probed:
        page.line(("Probed: ", "bold"), (card.probed.replace("`", ""), ""), indent=3)
    page.line((f"Evidence: {evidence_in_words(card)}", "dim"), indent=3)


def _logs(page: Page, view: View) -> None:
    """The devices of samplers' logs, and memory snapshots."""
    for title, table in (("GPUs in the logs", view.logs.devices), ("Memory snapshots", view.logs.snapshots)):
        if table is None:
            continue
        page.blank()
        page.line((title, "bold"))
        if page.width >= NARROW:
            columns = [(name, index >= table.text_columns) for index, name in enumerate(table.columns)]
            page.table(columns, [[(cell, "") for cell in row] for row in table.rows[:_LOG_ROWS]])
        else:
            for row in table.rows[:_LOG_ROWS]:
                told = [f"{name.lower()} {cell}" for name, cell in zip(table.columns[1:], row[1:], strict=True) if cell]
                page.line((f"{row[0]}: ", ""), (", ".join(told), "dim"))
        page.line((table.caption, "dim"))
    for name, table in view.logs.live if len(view.logs.live) == 1 else ():
        page.blank()
        page.line((name, "bold"))
        for line, kind, _, size, share in table.rows[:_LIVE_ROWS]:
            page.line((f"{size}, {share}, {kind}: ", ""), (line, "dim"))


def _ranks(page: Page, view: View) -> None:
    if not view.waiting:
        return
    page.blank()
    page.line(("Who waits for whom", "bold"))
    for line in view.waiting:
        page.line((line.replace("`", ""), ""))
    if view.ledger is not None and page.width >= NARROW:
        names = view.ledger.columns
        rows = [[(cell, "") for cell in row] for row in view.ledger.rows[:_LEDGER_ROWS]]
        page.table([(name, index >= view.ledger.text_columns) for index, name in enumerate(names)], rows)


def _changes(page: Page, view: View) -> None:
    page.blank()
    page.line((view.change_heading, "bold"))
    for number, card in enumerate(view.changes, 1):
        _change(page, number, card)
    if view.no_change:
        page.line((view.no_change, ""))
    rest = [card for card in view.cards if card not in view.changes]
    if rest:
        page.blank()
        page.line(("Other findings" if view.changes else "Findings", "bold"))
    for card in rest[:_OTHER_FINDINGS]:
        gain = f", saving {card.gain}" if card.gain else f", {card.throughput}" if card.throughput else ""
        title = card.title.replace("`", "")
        page.line(
            (f"{card.shape} ", STYLES[card.tone]), (title, ""), (f"{gain}  {card.rule} {evidence_numbers(card)}", "dim")
        )
    if len(rest) > _OTHER_FINDINGS:
        page.line((f"{len(rest) - _OTHER_FINDINGS} more.", "dim"))


def _probes(page: Page, view: View) -> None:
    """What probes in the run measured, whatever it is beside."""
    if not view.probes.facts:
        return
    page.blank()
    page.line(("Probes in the run", "bold"))
    for fact in view.probes.facts:
        page.line((f"{fact.label.replace('`', '')}: {fact.value}", ""), (f" · {fact.note}", "dim"))
    if view.probes.caption:
        page.line((view.probes.caption, "dim"))


def _waterfall(page: Page, view: View) -> None:
    table = view.waterfall.table
    if table is None:
        return
    page.blank()
    page.line((view.waterfall.title, "bold"))
    for row in table.rows:
        saved = f", {row[3]} saved" if row[3] else ""
        page.line((f"{row[0]}: {row[2]}{saved}", ""))
    page.line((view.waterfall.caption, "dim"))


def _cost(page: Page, view: View) -> None:
    """Lost time by cause, and what each finding gives back."""
    if not view.cost.title:
        return
    page.blank()
    page.line(("Lost time", "bold"))
    page.line((view.cost.title, ""))
    page.line((view.cost.caption, "dim"))
    for table in (view.cost.lost, view.cost.fixes):
        if table is not None and page.width >= NARROW:
            columns = [(name, index >= table.text_columns) for index, name in enumerate(table.columns)]
            page.table(columns, [[(cell, "") for cell in row] for row in table.rows[:_COST_ROWS]])


def _others(page: Page, view: View) -> None:
    if not view.others:
        return
    page.blank()
    page.line(("Why not the others", "bold"))
    if page.width < NARROW:
        for row in view.others:
            page.line((f"{row.bound}: share {row.share}, saving {row.saving}", ""))
            page.line((row.reason.replace("`", ""), "dim"), indent=2)
        return
    rows = [
        ((row.bound, ""), (row.share, ""), (row.saving, ""), (row.reason.replace("`", ""), "dim"))
        for row in view.others
    ]
    page.table((("Bound", False), ("Share", True), ("Saving", True), ("Reason", False)), rows)


def _kernels(page: Page, view: View) -> None:
    if view.top_kernels is None or page.width < NARROW:
        return
    page.blank()
    page.line(("Largest kernels", "bold"))
    table = view.top_kernels
    if table.caption:
        page.line((table.caption, "dim"))
    columns = [(name, index >= table.text_columns) for index, name in enumerate(table.columns)]
    page.table(columns, [[(cell, "") for cell in row] for row in table.rows])


def _scope(page: Page, view: View) -> None:
    page.blank()
    page.line((view.rule_count, ""), (f" {view.other_outcomes}", "dim"))
    for note in view.notes[:3]:
        page.line((note.replace("`", ""), "dim"))


def render(report: Report, *, width: int = 80, colour: bool = False, ascii_only: bool = False) -> str:
    """The report as text.

    Args:
        report: what to show.
        width: columns; below 40 the text is set for 40.
        colour: add ANSI colours; shapes, words and fills carry the same meaning.
        ascii_only: print nothing outside ASCII.
    """
    view = build(report)
    page = Page(width, colour, ascii_only)
    _verdict(page, view)
    _parts(page, view)
    _wall(page, view)
    _kernels(page, view)
    _measured(page, view)
    _logs(page, view)
    _ranks(page, view)
    _changes(page, view)
    _probes(page, view)
    _waterfall(page, view)
    _cost(page, view)
    _others(page, view)
    _scope(page, view)
    return page.text()
