"""What every renderer prints: finished text, in the order in which it is printed."""

from typing import Literal

import msgspec

from profilerkit.model.finding import Source, Status
from profilerkit.model.ledger import LedgerSource
from profilerkit.model.step import Family

Tone = Literal["high", "medium", "low", "good", "info"]


class Fact(msgspec.Struct, frozen=True):
    """A label, its value, and what qualifies it (may be empty)."""

    label: str
    value: str
    note: str = ""


class Kind(msgspec.Struct, frozen=True):
    """The line above the headline: shape, word and confidence, each enough by itself."""

    shape: str
    tone: Tone
    word: str
    detail: str
    confidence: str

    @property
    def text(self) -> str:
        """The line without its shape: ``INPUT-BOUND · preparing samples · confidence high``."""
        return " · ".join(piece for piece in (self.word, self.detail, f"confidence {self.confidence}") if piece)


class Segment(msgspec.Struct, frozen=True):
    """One family of the step, or one stage of the run, in a family's colour.

    ``ratio`` is its share of the bar, 0 to 1; ``detail`` names its largest part, or says how often it occurred.
    """

    family: Family
    label: str
    time: str
    share: str
    ratio: float
    source: Source | LedgerSource
    detail: str


class PartRow(msgspec.Struct, frozen=True):
    """One part of the step."""

    family: Family
    label: str
    time: str
    share: str
    source: Source


class EvidenceRow(msgspec.Struct, frozen=True):
    """One number behind a claim; ``scope`` is the rank it is of, ``rank 5``, and may be empty.

    ``also`` is the same number in another unit: of a share of the step its time. It may be empty.
    """

    id: str
    label: str
    value: str
    interval: str
    basis: str
    source: Source
    origin: str
    scope: str = ""
    also: str = ""


class Card(msgspec.Struct, frozen=True):
    """One finding. ``saving`` is the full text, ``gain`` the short one; both are empty where none can be stated.

    ``throughput`` is the gain in samples per second of a fix that makes no step shorter; empty for others.
    ``page`` is the documentation of its rule, heading and text. ``probed`` is what a probe in the run measured of it.
    ``savings`` are the rows of the numbers in ``saving`` and ``throughput``.
    """

    anchor: str
    rule: str
    shape: str
    tone: Tone
    severity: str
    title: str
    saving: str
    gain: str
    method: str
    confidence: str
    why: str
    fix: str
    code: str
    confirm: str
    scope: str
    evidence: tuple[EvidenceRow, ...]
    throughput: str = ""
    page: tuple[tuple[str, str], ...] = ()
    probed: str = ""
    savings: tuple[EvidenceRow, ...] = ()


class Other(msgspec.Struct, frozen=True):
    """A bound that is not the verdict, and the number that decides it; ``family`` is what it is about, in words."""

    bound: str
    state: str
    share: str
    saving: str
    reason: str
    family: str = ""


class OutcomeRow(msgspec.Struct, frozen=True):
    """One rule and how it ended."""

    rule: str
    summary: str
    reason: str
    hint: str


class OutcomeGroup(msgspec.Struct, frozen=True):
    """All rules that ended the same way."""

    status: Status
    label: str
    rows: tuple[OutcomeRow, ...]


class SignalRow(msgspec.Struct, frozen=True):
    """One kind of evidence and whether it was recorded."""

    name: str
    state: str
    reason: str
    hint: str


class RankRow(msgspec.Struct, frozen=True):
    """One rank; ``mark`` says why it stands out and may be empty."""

    label: str
    step: str
    busy: str
    device: str
    mark: str
    bar: tuple[Segment, ...]


class Table(msgspec.Struct, frozen=True):
    """A plain table. The first ``text_columns`` are text, the others numbers; ``more`` says what was left out.

    ``anchors`` are names of the rows for links, one for each; empty where nothing links to them.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: int = 1
    more: str = ""
    anchors: tuple[str, ...] = ()


class Bar(msgspec.Struct, frozen=True):
    """One bar of a figure: its name and its length, 0 to 1."""

    label: str
    ratio: float


class WaterfallView(msgspec.Struct, frozen=True):
    """What the fixes save together, as bars and as a table; ``title`` is the finding, empty without a fix."""

    title: str
    caption: str
    table: Table | None
    bars: tuple[Bar, ...]


class StepView(msgspec.Struct, frozen=True):
    """The per-step figure in words and as a table; ``title`` is the finding, ``missing`` why there is no figure."""

    title: str
    caption: str
    table: Table | None
    missing: str = ""


class MemoryView(msgspec.Struct, frozen=True):
    """Memory: what is known, the peak of every step in words and as a table, and what was alive at the peak.

    ``used`` is the peak / capacity of the device, 0 to 1. Without a figure the title is empty.
    """

    facts: tuple[Fact, ...]
    used: float | None
    title: str
    caption: str
    table: Table | None
    alive: Table | None


class WorkersView(msgspec.Struct, frozen=True):
    """The loader's worker processes: numbers, a batch by part, and by stage. Without any there are no facts."""

    facts: tuple[Fact, ...]
    parts: Table | None
    stages: Table | None


class WallRow(msgspec.Struct, frozen=True):
    """One stage of the whole run, or one entry of it; ``source`` says in words what was not measured."""

    family: Family
    label: str
    time: str
    share: str
    source: str
    detail: str
    is_stage: bool = False


class WallView(msgspec.Struct, frozen=True):
    """The wall clock of the whole run; without a ledger the title is empty.

    ``title`` is the finding in words, ``first`` what belongs beside the verdict, ``ranks`` every rank by stage.
    """

    title: str
    first: str
    bar: tuple[Segment, ...]
    caption: str
    rows: tuple[WallRow, ...]
    ranks: Table | None


class OomView(msgspec.Struct, frozen=True):
    """What a rank that ran out of memory held. No facts, no section."""

    facts: tuple[Fact, ...]
    live: Table | None
    largest: Table | None


class LogsView(msgspec.Struct, frozen=True):
    """Logs: the devices of samplers' logs, memory snapshots, and what was in use at the peak of each by its name."""

    devices: Table | None
    snapshots: Table | None
    live: tuple[tuple[str, Table], ...]


class CostView(msgspec.Struct, frozen=True):
    """Lost time by cause and what each finding would give back; without either the title is empty."""

    title: str
    caption: str
    lost: Table | None
    fixes: Table | None


class ProbesView(msgspec.Struct, frozen=True):
    """Probes in the run, a fact for each; ``caption`` is empty where none put a step in."""

    facts: tuple[Fact, ...] = ()
    caption: str = ""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A report in words, shared by html, markdown and terminal. Empty text or an empty tuple is left out."""

    run_name: str
    kind: Kind
    headline: str
    headline_evidence: tuple[EvidenceRow, ...]
    stated: tuple[EvidenceRow, ...]
    consequence: str
    limits: tuple[str, ...]
    tiles: tuple[Fact, ...]
    bar: tuple[Segment, ...]
    bar_caption: str
    parts: tuple[PartRow, ...]
    parts_missing: str
    input_missing: str
    wall: WallView
    change_heading: str
    cards: tuple[Card, ...]
    changes: tuple[Card, ...]
    no_change: str
    others: tuple[Other, ...]
    refuted_by: str
    steps: StepView
    ranks: tuple[RankRow, ...]
    ranks_caption: str
    ranks_more: str
    waiting: tuple[str, ...]
    crowd: tuple[tuple[str, Table], ...]
    ledger: Table | None
    workers: WorkersView
    memory: MemoryView
    oom: OomView
    compute: tuple[Fact, ...]
    kernels: Table | None
    top_kernels: Table | None
    collectives: Table | None
    recorded: Table | None
    models: tuple[Fact, ...]
    windows: Table | None
    trust: tuple[Fact, ...]
    signals: tuple[SignalRow, ...]
    measured_signals: str
    notes: tuple[str, ...]
    outcomes: tuple[OutcomeGroup, ...]
    rule_count: str
    other_outcomes: str
    run: tuple[Fact, ...]
    loader: tuple[Fact, ...]
    versions: tuple[Fact, ...]
    settings: tuple[Fact, ...]
    samples: tuple[tuple[str, Table], ...]
    created: str
    waterfall: WaterfallView
    cost: CostView
    logs: LogsView
    probes: ProbesView = ProbesView()
