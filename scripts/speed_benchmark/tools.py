"""What is compared: profilerkit, the parsers everyone has, and the peers that install from PyPI."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: Programs end without tearing their objects down: what is compared is the time until the data is there.
_END = "; sys.stdout.flush(); os._exit(0)"
_LOAD = "import json, os, sys; json.load(open(sys.argv[1], encoding='utf-8'))" + _END
_ORJSON = "import os, sys, orjson; orjson.loads(open(sys.argv[1], 'rb').read())" + _END
_READ = "import os, sys; from profilerkit.formats.registry import read_trace; read_trace(sys.argv[1])" + _END
_HTA = (
    "import os, sys; from hta.trace_analysis import TraceAnalysis; "
    "TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir=os.path.dirname(sys.argv[1]))" + _END
)
_TORCH_TB = (
    "import os, sys; from torch_tb_profiler.profiler.data import RunProfileData; "
    "RunProfileData.parse('worker0', None, sys.argv[1], None)" + _END
)


@dataclass(frozen=True, slots=True)
class Tool:
    """One thing to measure.

    Attributes:
        name: how it is called in the report.
        what: what it does with the trace.
        program: Python source that takes the trace as its argument; empty for ``profilerkit analyze``.
        package: what to install from PyPI into an environment of its own; empty for what is at hand.
        packed: it gets the gzip file.
        largest_mb: larger traces are not given to it.
        most_rounds: how often it is run at most.
    """

    name: str
    what: str
    program: str = ""
    package: str = ""
    packed: bool = False
    largest_mb: float = float("inf")
    most_rounds: int = 1_000


ANALYZE, PACKED, READER, JSON = "profilerkit analyze", "profilerkit analyze .gz", "profilerkit reader", "json.load"
HTA = "HTA"

OURS = (
    Tool(ANALYZE, "read, attribute, judge, write the HTML report"),
    Tool(PACKED, "the same from .json.gz", packed=True),
    Tool(READER, "read into columns", _READ),
)
OTHERS = (
    Tool(JSON, "Python's own parser, whole file", _LOAD, largest_mb=500),
    Tool("orjson", "fastest common parser, whole file", _ORJSON, "orjson", largest_mb=500),
    Tool(HTA, "TraceAnalysis(...): load and align", _HTA, "traceinsight", largest_mb=500, most_rounds=1),
    Tool("HTA 0.5", "TraceAnalysis(...), release", _HTA, "HolisticTraceAnalysis", largest_mb=100, most_rounds=1),
    Tool("torch-tb-profiler", "load and analyse", _TORCH_TB, "torch-tb-profiler", largest_mb=500, most_rounds=1),
)
TOOLS = OURS + OTHERS


@dataclass(frozen=True, slots=True)
class Installed:
    """A tool and the interpreter that has it, or the reason why none has."""

    tool: Tool
    python: Path | None
    version: str
    reason: str = ""

    def command(self, trace: Path, report: Path) -> list[str]:
        """The command that gives ``trace`` to the tool."""
        if not self.tool.program:
            return [str(self.python), "-m", "profilerkit", "analyze", str(trace), "-o", str(report)]
        return [str(self.python), "-c", self.tool.program, str(trace)]

    def environment(self) -> dict[str, str]:
        """Ours run from this tree; peers see nothing of it."""
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSTARTUP")}
        return kept if self.tool.package else {**kept, "PYTHONPATH": str(ROOT)}


def install(tool: Tool, peers: Path | None, own_version: str) -> Installed:
    """Find the interpreter for a tool; make an environment under ``peers`` where one is needed."""
    here = Path(sys.executable)
    if not tool.package:
        return Installed(tool, here, own_version if tool in OURS else f"Python {sys.version.split()[0]}")
    if peers is None:
        return Installed(tool, None, "", "not asked for: --peers was not given")
    place = peers / tool.package
    python = place / "bin" / "python"
    if not python.exists():
        made = subprocess.run([here, "-m", "venv", str(place)], capture_output=True, text=True, check=False)
        if made.returncode:
            return Installed(tool, None, "", _last_line(made.stderr or made.stdout))
    got = subprocess.run(
        [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", tool.package],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if got.returncode:
        return Installed(tool, None, "", _last_line(got.stderr))
    asked = f"from importlib.metadata import version; print(version({tool.package!r}))"
    version = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()
    return Installed(tool, python, f"{tool.package} {version}")


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.startswith("ERROR")] or text.splitlines() or ["no reason given"]
    return lines[-1].removeprefix("ERROR: ")
