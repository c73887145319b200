"""Makes one recording: two processes that train as one job, and what their timers say about it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from rank_recordings.kinds import KINDS, WORLD_SIZE
from rank_recordings.truth import document, read_truth

#: Loops take turns, so that both ways to reduce gradients are recorded.
LOOPS = ("ddp", "explicit")
SOURCES = ("trace", "run")
_SECONDS = 180.0


def record(kind: str, loop: str, directory: Path, seed: str) -> str:
    """Why the recording in ``directory``, which is emptied first, is not what it should be; empty when it is."""
    shutil.rmtree(directory, ignore_errors=True)
    for part in ("trace", "timers"):
        (directory / part).mkdir(parents=True)
    if failure := _train(kind, loop, directory, seed):
        return failure
    truth = document(KINDS[kind], loop, {source: read_truth(directory, source) for source in SOURCES})
    (directory / "truth.json").write_text(json.dumps({"kind": kind, **truth}, indent=1) + "\n", "utf-8")
    return "; ".join(f"{source}: {why}" for source in SOURCES if (why := truth[source]["invalid"]))


def _train(kind: str, loop: str, directory: Path, seed: str) -> str:
    """Why one of the ranks failed; empty when they trained."""
    command = [sys.executable, "-m", "rank_recordings.train", kind, loop, str(directory.resolve()), seed]
    ranks = []
    for rank in range(WORLD_SIZE):
        with (directory / f"output.{rank}.txt").open("wb") as output:
            # Sessions of their own, as torchrun gives them: Linux may share the cores out by session.
            ranks.append(
                subprocess.Popen(
                    command, env=_environment(rank), stdout=output, stderr=subprocess.STDOUT, start_new_session=True
                )
            )
    try:
        codes = [process.wait(_SECONDS) for process in ranks]
    except subprocess.TimeoutExpired:
        return f"not done after {_SECONDS:.0f} s"
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    failed = [rank for rank, code in enumerate(codes) if code]
    if not failed:
        return ""
    said = (directory / f"output.{failed[0]}.txt").read_text("utf-8", errors="replace").splitlines()
    return f"rank {failed[0]} ended with exit code {codes[failed[0]]}: {said[-1] if said else 'no output'}"


def _environment(rank: int) -> dict[str, str]:
    """The variables torchrun sets on one node, and this package made importable."""
    job = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": WORLD_SIZE, "LOCAL_WORLD_SIZE": WORLD_SIZE}
    scripts = str(Path(__file__).resolve().parents[1])
    paths = os.pathsep.join(filter(None, (scripts, os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, **{name: str(value) for name, value in job.items()}, "PYTHONPATH": paths}
