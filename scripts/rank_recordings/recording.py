"""Makes one recording: two processes that train as one job, and what their timers say about it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rank_recordings.kinds import KINDS, SOURCES, WORLD_SIZE
from rank_recordings.truth import document

_SECONDS = 180.0


def record(kind: str, loop: str, directory: Path, seed: str, sources: Sequence[str] = SOURCES) -> dict[str, str]:
    """Record the sources anew; which of them are not what they should be, and why."""
    for source in sources:
        shutil.rmtree(directory / source, ignore_errors=True)
    for part in ("trace", "timers"):
        (directory / part).mkdir(parents=True, exist_ok=True)
    (directory / "store").unlink(missing_ok=True)
    if failure := _train(kind, loop, directory, seed, sources):
        return dict.fromkeys(sources, failure)
    truth = {source: document(KINDS[kind], directory, source) for source in SOURCES}
    whole = {"kind": kind, "loop": loop, "injected": asdict(KINDS[kind]), **truth}
    (directory / "truth.json").write_text(json.dumps(whole, indent=1) + "\n", "utf-8")
    return {source: why for source in sources if (why := str(truth[source]["invalid"]))}


def _train(kind: str, loop: str, directory: Path, seed: str, sources: Sequence[str]) -> str:
    """Why one of the ranks failed; empty when they trained."""
    arguments = [kind, loop, str(directory.resolve()), seed, *sources]
    ranks = []
    for rank in range(WORLD_SIZE):
        with (directory / f"output.{rank}.txt").open("wb") as output:
            ranks.append(
                subprocess.Popen(
                    [sys.executable, "-m", "rank_recordings.train", *arguments],
                    env=_environment(rank),
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    # As torchrun does it: Linux may share the cores out by session.
                    start_new_session=True,
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
