"""Starts the measured processes: one, two ranks, or one under TraceML's launcher from an environment of its own."""

import json
import math
import socket
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from measured_processes import SCRIPTS, SILENT, environment, wait

from overhead_benchmark.cases import TRACEML, Case
from overhead_benchmark.results import joined

PROGRAM = Path(__file__).with_name("program.py")
TRACEML_PACKAGE = "traceml-ai"
_MOST_SECONDS = 1200


@dataclass(frozen=True, slots=True)
class Peer:
    """TraceML's environment, or the reason why there is none."""

    place: Path | None
    version: str = ""
    reason: str = ""


def install_traceml(peers: Path | None) -> Peer:
    """An environment under ``peers`` that has TraceML, and torch from this interpreter's packages."""
    if peers is None:
        return Peer(None, reason="not asked for: --peers was not given")
    place = peers / TRACEML_PACKAGE
    python = place / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", place], check=True, capture_output=True)
    found = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    Path(found.stdout.strip(), "torch_of_the_benchmark.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    asked = f"from importlib.metadata import version; print(version({TRACEML_PACKAGE!r}))"
    installed = subprocess.run([python, "-c", asked], check=False, capture_output=True, text=True)
    if installed.returncode:
        pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", TRACEML_PACKAGE]
        got = subprocess.run(pip, check=False, capture_output=True, text=True)
        if got.returncode:
            return Peer(None, reason=f"not installed: {(got.stderr.splitlines() or ['pip failed'])[-1]}")
        installed = subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True)
    return Peer(place, version=installed.stdout.strip())


def run_case(case: Case, peer: Peer, place: Path) -> dict[str, Any]:
    """What the program of a case found; ``{"reasons": ...}`` alone when it could not be run."""
    if not case.traceml:
        return joined([_part(case, number, place) for number in range(case.processes)])
    if peer.place is None:
        return {"reasons": {TRACEML: peer.reason}}
    out = place / "out.json"
    # Its launcher starts the process that gathers what the training process sends.
    command = [
        peer.place / "bin" / "traceml", "run", "--mode", "summary", "--logs-dir", place / "traceml",
        "--finalize-timeout-sec", "20", PROGRAM, "--args", json.dumps(case.as_json()), out, place / "runs",
    ]  # fmt: skip
    own = {**environment(), "PYTHONPATH": str(SCRIPTS)}
    failed = wait([subprocess.Popen(command, env=own, cwd=place, **SILENT)], _MOST_SECONDS)
    if not out.exists():
        return {"reasons": {TRACEML: f"failed: {failed}"}}
    return json.loads(out.read_text("utf-8"))


def _part(case: Case, number: int, place: Path) -> dict[str, Any]:
    """What one of a case's processes found in its share of the pairs; the first measures the trace windows."""
    own = place / str(number)
    own.mkdir()
    share = replace(case, pairs=math.ceil(case.pairs / case.processes), deep=case.deep and not number)
    return run_program(share.as_json(), own, case.ranks)


def run_program(given: dict[str, Any], place: Path, ranks: int = 1) -> dict[str, Any]:
    """What ``program.py`` writes. Raises RuntimeError with the end of what it printed when it fails."""
    out = place / "out.json"
    command = [sys.executable, PROGRAM, json.dumps(given), out, place / "runs"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    job = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    started = []
    for rank in range(ranks):
        where = {**job, "RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}
        started.append(subprocess.Popen(command, env={**environment(), **where}, cwd=place, **SILENT))
    failed = wait(started, _MOST_SECONDS)
    if not out.exists():
        raise RuntimeError(f"the measured program failed: {failed}")
    return json.loads(out.read_text("utf-8"))
