"""Starts the processes of a scenario: one or two ranks, recorded or measured."""

import json
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from measured_processes import SILENT, environment, wait

from accuracy_benchmark.scenario import Scenario

PROGRAM = Path(__file__).with_name("program.py")
_MOST_SECONDS = 300
_NO_VALUES: Mapping[str, Any] = MappingProxyType({})


def run(
    mode: str, scenario: Scenario, place: Path, rounds: tuple[int, int] = (1, 1), values: Mapping[str, Any] = _NO_VALUES
) -> dict[str, Any]:
    """What ``program.py`` writes. Raises RuntimeError with the end of what it printed when it fails.

    ``values`` are those of the settings that are changed.
    """
    out = place / f"{mode}.json"
    command = [sys.executable, PROGRAM, mode, scenario.code, out, place / mode, f"{rounds[0]}-{rounds[1]}"]
    command += [json.dumps(dict(values))]
    (place / mode).mkdir()
    started = [
        subprocess.Popen(command, env={**environment(), **where}, cwd=place, **SILENT) for where in _ranks(scenario)
    ]
    failed = wait(started, _MOST_SECONDS)
    if not out.exists():
        raise RuntimeError(f"{scenario.code}, {mode}: {failed}")
    return json.loads(out.read_text("utf-8"))


def plain(scenario: Scenario, place: Path) -> list[str | Path]:
    """The command that trains the program with the fault, and knows nothing of profilerkit."""
    many = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(scenario.ranks))
    launcher = many if scenario.ranks > 1 else ()
    return [sys.executable, *launcher, PROGRAM, "plain", scenario.code, place / "plain.json", place / "plain", "1-1"]


def _ranks(scenario: Scenario) -> list[dict[str, str]]:
    """What torchrun would put into the environment of each rank."""
    if scenario.ranks == 1:
        return [{}]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = str(scenario.ranks)
    job = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [{**job, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(scenario.ranks)]
