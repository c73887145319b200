"""Go on with the Python that has profilerkit, and this tree first: every script imports this before other packages."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_PYTHON = ROOT / ".venv" / "bin" / "python"
if find_spec("profilerkit") is None and _PYTHON.exists():
    os.execv(_PYTHON, [str(_PYTHON), *sys.argv])
sys.path.insert(1, str(ROOT))
