"""How the runs of the samples are made: by scenarios of the accuracy benchmark, by a demo, by the simulator."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from measured_processes import environment

#: Makes the recording called NAME below a directory: what ``analyze`` reads, or the two that ``diff`` compares.
Make = Callable[[Path, str], tuple[Path, ...]]

_TRAIN = Path(__file__).with_name("train.py")
_MOST_SECONDS = 180
#: Of so many draws of its class the simulated job is one: a class spreads the size of its fault over them.
_DRAWS = 200


def run(command: list[str | Path], place: Path) -> None:
    """Run a command of this tree in ``place``. Raises RuntimeError with the end of what it printed when it fails."""
    done = subprocess.run(
        [sys.executable, *command], cwd=place, env=environment(), capture_output=True, text=True, timeout=_MOST_SECONDS,
        check=False,
    )  # fmt: skip
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()
        raise RuntimeError(f"exit code {done.returncode}: {' / '.join(said[-3:])}")


def scenario(code: str) -> Make:
    """A scenario of the accuracy benchmark with its fault."""

    def make(place: Path, name: str) -> tuple[Path, ...]:
        from accuracy_benchmark import launch  # noqa: PLC0415 - torch takes seconds, and rendering needs none
        from accuracy_benchmark.catalogue import BY_CODE  # noqa: PLC0415

        launch.run("record", BY_CODE[code], place)
        return ((place / "record" / "run").rename(place / name),)

    return make


def healthy(place: Path, name: str) -> tuple[Path, ...]:
    """A run of ``train.py``."""
    run([_TRAIN, name, place / name], place)
    return (place / name,)


def demo(kind: str) -> Make:
    """The first run of ``profilerkit demo``, and one with the fix, which is a number of workers."""

    def make(place: Path, name: str) -> tuple[Path, ...]:
        run(["-m", "profilerkit", "demo", kind, "--keep", "-o", name], place)
        return place / name / "first", next((place / name).glob("num_workers=*"))

    return make


def simulated(draw: str) -> Make:
    """The traces of a simulated job, one for each rank, by the code of its class and its number."""

    def make(place: Path, name: str) -> tuple[Path, ...]:
        from simulator.kineto import text_of  # noqa: PLC0415 - only recording needs it
        from simulator.parallel import simulate  # noqa: PLC0415
        from simulator.score import job_of  # noqa: PLC0415

        code, _, index = draw.partition("/")
        job = job_of(code, int(index), _DRAWS)
        (place / name).mkdir()
        for rank in simulate(job):
            (place / name / f"rank{rank.index}.json").write_text(text_of(job, rank), "utf-8")
        return (place / name,)

    return make
