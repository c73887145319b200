"""From running a scenario to a row of the document, and from rows to the whole of it."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from measured_processes import tried

from accuracy_benchmark import launch, peers, scores
from accuracy_benchmark.catalogue import BY_CODE
from accuracy_benchmark.host import load_average, quiet_pressure
from accuracy_benchmark.judge import judge, proposed
from accuracy_benchmark.scenario import Scenario
from accuracy_benchmark.truth import noise, saving_interval
from profilerkit import load
from profilerkit.model.verdict import BOUND_FAMILY
from profilerkit.rules.calibrated import WITHIN

#: Shows that a trial runs.
_QUICK = ("--budget", "10", "--steps", "20")
#: What a scenario without fixes measures.
_NOTHING: Mapping[str, Any] = {"blocks_s": [], "differs": []}


def row_of(
    scenario: Scenario, place: Path, rounds: tuple[int, int], installed: Sequence[peers.Installed], commit: str | None
) -> tuple[dict[str, Any], list[str]]:
    """One row, and the traces of the recorded run for those that read traces.

    Args:
        scenario: what is run; its fixes have the values that ``try`` tried, or that the recorded run's report proposes.
        place: a directory to make.
        rounds: of blocks, at least and at most.
        installed: other tools.
        commit: of the code that is judged; ``None`` where it is under no version control.
    """
    place.mkdir()
    row: dict[str, Any] = {
        "code": scenario.code,
        "what": scenario.what,
        "family": scenario.family,
        "causes": [BOUND_FAMILY.get(bound, "healthy") for bound in scenario.bounds],  # type: ignore[call-overload]
        "bounds": list(scenario.bounds),
        "details": list(scenario.details),
        "rules": list(scenario.rules),
        "ranks": scenario.ranks,
        "commit": commit,
        "host": {"load": load_average(), "quiet_pressure": quiet_pressure()},
    }
    try:
        recorded = launch.run("record", scenario, place)
        report = load(place / "record" / "run" / "report.json")
        trial = tried(launch.plain(scenario, place), place, _QUICK if rounds[1] == 1 else ())
        values = proposed(report, trial)
        scenario = scenario.as_proposed(values)
        measured = launch.run("truth", scenario, place, rounds, values) if scenario.fixes else _NOTHING
    except (RuntimeError, OSError) as error:
        shutil.rmtree(place)
        return {**row, "skipped": f"failed: {error}", "fixes": [], "tried": None}, []
    blocks_s = measured["blocks_s"]
    truths = [
        {**saving_interval(blocks_s[0], fixed), "differs": differs}
        for fixed, differs in zip(blocks_s[1:], measured["differs"], strict=True)
    ]
    row["host"] |= {"recorded_pressure": recorded["pressure"], "quiet_pressure_after": quiet_pressure()}
    row["blocks_s"] = blocks_s
    row |= judge(scenario, report, trial, truths)
    # Where the program itself fills the host, only the pressure without it tells anything about others.
    pressures = [row["host"][name] for name in ("quiet_pressure", "quiet_pressure_after", "recorded_pressure")]
    row["skipped"] = noise(truths, pressures[:2] if scenario.fills_host or scenario.ranks > 1 else pressures)
    traceml = next((peer for peer in installed if peer.tool == peers.TRACEML), None)
    if traceml is not None and traceml.python is not None:
        row["peers"] = {peers.TRACEML: peers.watch_with_traceml(traceml, scenario, place / "traceml")}
    return row, [str(path) for path in sorted(place.glob("record/run/rank_*/windows/*/trace.json*"))]


def with_readers(
    document: Mapping[str, Any], installed: Sequence[peers.Installed], traces: Mapping[str, list[str]]
) -> list[dict[str, Any]]:
    """The rows that have traces, with what the readers of traces say of them."""
    rows = [row for row in document["rows"] if row["code"] in traces and "said" in row]
    wanted = {row["code"]: first_windows(traces[row["code"]]) for row in rows}
    for peer in installed:
        if peer.tool != peers.TRACEML:
            said = peers.read_traces(peer, wanted)
            rows = [{**row, "peers": {**row.get("peers", {}), peer.tool: said[row["code"]]}} for row in rows]
    return rows


def first_windows(traces: Sequence[str]) -> list[str]:
    """One trace of each rank, the first: others know one trace per rank."""
    first: dict[Path, str] = {}
    for trace in traces:
        first.setdefault(Path(trace).parents[2], trace)
    return list(first.values())


def merged(
    earlier: Mapping[str, Any] | None, about: Mapping[str, Any], rows: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """The document with these rows and those of an earlier one that they do not replace, and its scores anew."""
    known = {row["code"]: row for row in (earlier or {}).get("rows", ())}
    for row in rows:
        known[row["code"]] = row
    kept = [known[code] for code in BY_CODE if code in known]
    found = scores.scores(kept)
    tools = [tool["tool"] for tool in about["tools"] if tool["tool"] in (peers.HTA, peers.TORCH_TB, peers.TRACEML)]
    return {
        **about,
        "rows": kept,
        "scores": found,
        "checks": scores.checks(found),
        "intervals": {method: share for method, (share, _) in WITHIN.items()},
        "confusion": {"said": [*scores.FAMILIES, scores.ABSTAINED], "counts": scores.confusion(kept)},
        "peers": [peers.peer_scores(kept, tool) for tool in tools],
    }


def saving_words(fix: Mapping[str, Any]) -> str:
    """``predicted → tried → measured`` of a fix, percent."""
    tried = fix["tried"]["saving"] if fix["tried"] else None
    told = [f"{100 * saving['expected']:.0f}" if saving else "–" for saving in (fix["predicted"], tried)]
    return f"{' → '.join(told)} → {100 * fix['truth']['saving']:.0f} %"
