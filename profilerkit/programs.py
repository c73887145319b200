"""Our own modules as programs: how another process of this Python runs them."""

import os
import site
import sys
from pathlib import Path

import profilerkit


def own_program(module: str, *arguments: str) -> list[str]:
    """Return the command that runs one of our modules, without running the script that this process runs.

    ``-P`` keeps the working directory out of its imports: a ``jinja2.py`` beside the training script is not ours.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def own_environment() -> dict[str, str]:
    """This process's environment, with profilerkit importable however it was found, and the working directory not.

    An empty or relative entry of ``PYTHONPATH`` stands for the working directory or a place below it.
    """
    home = Path(profilerkit.__file__).absolute().parent.parent
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [path for path in given if Path(path).is_absolute() and Path(path).resolve() != Path.cwd()]
    if str(home) not in (*site.getsitepackages(), site.getusersitepackages()):
        paths.insert(0, str(home))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
