"""The other tools: where they are installed, how they get the same input, and what their words mean in our families.

HTA and torch-tb-profiler read the trace windows of the recorded run. TraceML reads no trace: it watches the same
program in a run of its own. What a tool says is mapped by the tables below and by nothing else.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measured_processes
from overhead_benchmark.launch import install_traceml

from accuracy_benchmark import launch
from accuracy_benchmark.scenario import Scenario

HTA, TORCH_TB, TRACEML = "HTA", "torch-tb-profiler", "TraceML"
#: A tool that raised, or gave no numbers at all, on this input.
CANNOT = "cannot read this"
ABSTAINED = "abstained"
_PACKAGES = {HTA: "traceinsight", TORCH_TB: "torch-tb-profiler"}
_MOST_SECONDS = 300
_READER = Path(__file__).with_name("peer_reader.py")

#: The largest part of HTA 0.6.1's temporal breakdown (hta/analyzers/breakdown_analysis.py: busy computing, busy
#: otherwise, idle). Its "non compute" is communication and copies.
HTA_FAMILIES = {"compute": "healthy", "non_compute": "communication", "idle": "overhead"}
#: Recommendations of torch-tb-profiler 0.4.3 by what they contain (profiler/data.py: DataLoader above 5 %,
#: communication above 10 %, device memory above 90 % of its capacity); without one it finds nothing to change.
TORCH_TB_FAMILIES = {
    "time is in DataLoader": "input",
    "high time cost on communication": "communication",
    "Device memory usage is at the limit": "memory",
}
#: Kinds of TraceML 0.5.0's primary diagnosis (diagnostics/*/). A residual is time of the step in none of its phases;
#: a straggler without a kind is one whose cause it could not tell.
TRACEML_FAMILIES = {
    "INPUT_BOUND": "input",
    "INPUT_STRAGGLER": "input",
    "H2D_BOUND": "input",
    "H2D_STRAGGLER": "input",
    "RESIDUAL_HEAVY": "overhead",
    "COMPUTE_STRAGGLER": "compute",
    "COMPUTE_BOUND": "healthy",
    "BALANCED": "healthy",
    "NORMAL": "healthy",
    "CREEP_EARLY": "memory",
    "CREEP_CONFIRMED": "memory",
    "HIGH_PRESSURE": "memory",
    "HIGH_CPU": "overhead",
    "HIGH_HOST_MEMORY": "memory",
    "STRAGGLER": ABSTAINED,
    "NO_DATA": ABSTAINED,
    "WARMUP": ABSTAINED,
    "INCOMPLETE_DATA": ABSTAINED,
}


@dataclass(frozen=True, slots=True)
class Installed:
    """A tool and its interpreter, or the reason why there is none."""

    tool: str
    python: Path | None
    version: str = ""
    reason: str = ""


def install(peers: Path | None) -> list[Installed]:
    """Every tool, in an environment of its own under ``peers``; installed from PyPI where it is not there yet."""
    if peers is None:
        return [Installed(tool, None, reason="not asked for: --peers was not given") for tool in (*_PACKAGES, TRACEML)]
    found = [_install(tool, package, peers) for tool, package in _PACKAGES.items()]
    traceml = install_traceml(peers)
    python = traceml.place / "bin" / "python" if traceml.place else None
    return [*found, Installed(TRACEML, python, traceml.version, traceml.reason)]


def _install(tool: str, package: str, peers: Path) -> Installed:
    python = peers / package / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", peers / package], check=True, capture_output=True)
    asked = [python, "-c", f"from importlib.metadata import version; print(version({package!r}))"]
    found = subprocess.run(asked, check=False, capture_output=True, text=True)
    if found.returncode:
        pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", package]
        got = subprocess.run(pip, check=False, capture_output=True, text=True)
        if got.returncode:
            return Installed(tool, None, reason=f"not installed: {(got.stderr.splitlines() or ['pip failed'])[-1]}")
        found = subprocess.run(asked, check=True, capture_output=True, text=True)
    return Installed(tool, python, found.stdout.strip())


def read_traces(installed: Installed, traces: Mapping[str, list[str]]) -> dict[str, dict[str, str]]:
    """What a reader of traces says of each scenario; one process for all, which takes each scenario by itself."""
    if installed.python is None:
        return {code: {"family": CANNOT, "words": installed.reason} for code in traces}
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSTARTUP")}
    command = [installed.python, _READER, installed.tool]
    asked = json.dumps(traces)
    done = subprocess.run(
        command, input=asked, env=kept, capture_output=True, text=True, timeout=_MOST_SECONDS, check=False
    )
    said = dict(json.loads(line[1:]) for line in done.stdout.splitlines() if line.startswith("="))
    silent = {"error": (done.stderr.strip().splitlines() or ["it said nothing"])[-1]}
    return {code: _in_our_words(installed.tool, said.get(code, silent)) for code in traces}


def _in_our_words(tool: str, said: dict[str, Any]) -> dict[str, str]:
    """The family that a tool's own words stand for."""
    if "error" in said:
        return {"family": CANNOT, "words": str(said["error"])[:200]}
    if tool == HTA:
        largest = max(said["parts"], key=lambda name: said["parts"][name])
        words = ", ".join(f"{name} {share:.0f} %" for name, share in said["parts"].items())
        return {"family": HTA_FAMILIES[largest], "words": words}
    for text in said["recommendations"]:
        for part, family in TORCH_TB_FAMILIES.items():
            if part in text:
                return {"family": family, "words": text[:200]}
    return {"family": "healthy", "words": "no recommendation"}


def watch_with_traceml(installed: Installed, scenario: Scenario, place: Path) -> dict[str, str]:
    """TraceML's verdict on a run of the same program under its launcher."""
    if installed.python is None:
        return {"family": CANNOT, "words": installed.reason}
    place.mkdir()
    command = [
        installed.python.with_name("traceml"), "run", "--mode", "summary", "--logs-dir", place / "logs",
        "--nproc-per-node", str(scenario.ranks), "--finalize-timeout-sec", "20",
        launch.PROGRAM, "--args", "traceml", scenario.code, place / "out.json", place, "1-1",
    ]  # fmt: skip
    environment = {**measured_processes.environment(), "PYTHONPATH": str(measured_processes.SCRIPTS)}
    process = subprocess.Popen(command, env=environment, cwd=place, **measured_processes.SILENT)
    failed = measured_processes.wait([process], _MOST_SECONDS)
    summaries = sorted(place.glob("logs/*/final_summary.json"))
    if not summaries:
        return {"family": CANNOT, "words": f"no summary: {failed}"[:200]}
    primary = json.loads(summaries[-1].read_text("utf-8")).get("primary_diagnosis") or {}
    kind = str(primary.get("kind"))
    return {"family": TRACEML_FAMILIES.get(kind, ABSTAINED), "words": f"{kind}: {primary.get('summary')}"[:200]}


def peer_scores(rows: list[dict[str, Any]], tool: str) -> dict[str, Any]:
    """Families right among all judged rows and among those that the tool could read, and its false alarms.

    More is not asked of others than they can say: in a mixed run one of the causes is enough, and the rank is not.
    """
    said = [(row, row["peers"][tool]["family"]) for row in rows if not row["skipped"] and tool in row.get("peers", {})]
    read = [(row, family) for row, family in said if family != CANNOT]
    healthy = [family for row, family in read if row["family"] == "healthy"]
    right = sum(is_right(row, family) for row, family in read)
    return {
        "tool": tool,
        "asked": len(said),
        "read": len(read),
        "right": right,
        "of_all": right / len(said) if said else None,
        "of_read": right / len(read) if read else None,
        "alarms": sum(family not in ("healthy", ABSTAINED) for family in healthy) / len(healthy) if healthy else None,
    }


def is_right(row: dict[str, Any], family: str) -> bool:
    """Whether a tool named the true family, or one of several."""
    return family == row["family"] or (row["family"] == "mixed" and family in row["causes"])
