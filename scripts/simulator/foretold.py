"""What-ifs drawn, foretold by the replay of a trace, and simulated again: one record per draw, one summary per row."""

import random
import re
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from profilerkit import analyze
from profilerkit.analysis.replay.gate import savings
from profilerkit.analysis.trace_facts import trace_facts
from profilerkit.formats.registry import read_trace
from profilerkit.model import revise
from profilerkit.model.finding import in_order
from profilerkit.model.report import Report
from simulator.kineto import text_of
from simulator.parallel import simulate
from simulator.truth import done_step_ns
from simulator.whatifs import BY_CODE, share_of_draw

#: Goals: how far a saving may be off, in how many of the draws in which the gate is open.
POINTS, LEAST_CLOSE = 0.02, 0.95


@dataclass(frozen=True, slots=True)
class Foretold:
    """One draw.

    Attributes:
        saved: by simulating again, ratio of the step; ``foretold`` by the replay, ``None`` without one.
        refused: why the gate is closed; empty where it is open.
        error: of the unmodified replay.
        promised: what the finding says whose fix it is; ``None`` where no rule has that fix, or it does not fire.
    """

    code: str
    index: int
    saved: float
    foretold: float | None
    refused: str
    error: float
    promised: float | None = None

    @property
    def counts(self) -> bool:
        """Whether the prediction may be believed."""
        return self.foretold is not None and not self.refused

    @property
    def is_close(self) -> bool:
        """Whether the replay foretold it."""
        return self.foretold is not None and abs(self.foretold - self.saved) <= POINTS

    @property
    def is_kept(self) -> bool:
        """Whether the finding promised it."""
        return self.promised is not None and abs(self.promised - self.saved) <= POINTS


def foretell(code: str, index: int, count: int) -> Foretold:
    """Draw a job, replay its trace with the fix, and simulate the job with the fix."""
    row = BY_CODE[code]
    rng = random.Random(f"whatif/{code}/{index}/{count}")
    job = row.draw(rng, share_of_draw(rng, index, count))
    ranks, better = simulate(job), row.better(job)
    place = max(job.late.rank, 0)
    with tempfile.TemporaryDirectory() as directory:
        paths = [Path(directory) / f"rank{rank.index}.json" for rank in ranks]
        for path, rank in zip(paths, ranks, strict=True):
            path.write_text(text_of(job, rank), "utf-8")
        replay = trace_facts(read_trace(paths[place])).replay
        promised = _promised(row.rule, analyze(*paths)) if row.rule else None
    saved = 1.0 - done_step_ns(better, simulate(better)[place]) / done_step_ns(job, ranks[place])
    if replay is None:
        return Foretold(code, index, saved, None, "no step could be replayed", 0.0, promised)
    # The simulator's devices have no roof: kernels may be as fast as they are told to.
    graph = revise(replay.graph, least_ns=np.zeros_like(replay.graph.least_ns))
    changes = row.changes(job)
    value = savings(revise(replay, graph=graph), [changes])[0]
    refused = next(filter(None, (replay.refuses(change.fix_class) for change in changes)), "")
    return Foretold(code, index, saved, value, refused, replay.error, promised)


def _promised(rule: str, report: Report) -> float | None:
    """The expected saving of a rule's finding; ``None`` without one."""
    found = in_order(report.outcomes)
    return next((one.saving.expected for outcome, one in found if outcome.rule == rule and one.saving), None)


def summary(code: str, draws: Sequence[Foretold]) -> dict[str, Any]:
    """How the draws of a row went."""
    row = BY_CODE[code]
    counted = [draw for draw in draws if draw.counts]
    off = [abs(draw.foretold - draw.saved) for draw in counted if draw.foretold is not None]
    close = sum(draw.is_close for draw in counted)
    holds = not counted if row.closes else close >= LEAST_CLOSE * len(counted)
    return {
        "code": code, "what": row.what, "closes": row.closes, "draws": len(draws), "open": len(counted),
        "close": close, "holds": holds,
        "median_error": round(statistics.median(off), 5) if off else None,
        "largest_error": round(max(off), 5) if off else None,
        "saved": [round(draw.saved, 4) for draw in draws],
        "foretold": [None if draw.foretold is None else round(draw.foretold, 4) for draw in draws],
        "is_open": "".join("01"[draw.counts] for draw in draws),
        "closed_by": sorted({re.sub(r"\d[\d, ]*", "N ", draw.refused) for draw in draws if draw.refused}),
        "rule": row.rule or None, "fired": sum(draw.promised is not None for draw in draws) if row.rule else None,
        "kept": sum(draw.is_kept for draw in draws) if row.rule else None,
        "promised": [None if draw.promised is None else round(draw.promised, 4) for draw in draws],
    }  # fmt: skip


def line_of(entry: dict[str, Any]) -> str:
    """One line of the table."""
    word = "ok" if entry["holds"] else "MISSED"
    told = "gate closed" if entry["closes"] else f"{entry['close']:3} of {entry['open']:3} close"
    worst = entry["largest_error"]
    off = "" if worst is None else f"median {entry['median_error']:.2%} worst {worst:.2%}"
    promised = "" if entry["rule"] is None else f"  {entry['rule']} {entry['kept']:3} of {entry['fired']:3} kept"
    opened = f"{entry['open']:3} of {entry['draws']:3} open"
    return f"{entry['code']}  {entry['what']:<44} {told:<18} {opened}  {off:<28} {word:<6}{promised}"


def document_of(entries: Sequence[dict[str, Any]], draws: int) -> dict[str, Any]:
    """All rows, and the draws of all of them together."""
    opened, close = (sum(entry[key] for entry in entries if not entry["closes"]) for key in ("open", "close"))
    return {
        "schema_version": 1,
        "draws": draws,
        "goals": {"points": POINTS, "least_close": LEAST_CLOSE},
        "open": opened,
        "close": close,
        "close_ratio": round(close / opened, 4) if opened else None,
        "fired": sum(entry["fired"] or 0 for entry in entries),
        "kept": sum(entry["kept"] or 0 for entry in entries),
        "holds": close >= LEAST_CLOSE * opened and all(entry["holds"] for entry in entries if entry["closes"]),
        "rows": list(entries),
    }
