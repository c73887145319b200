"""Runs in the environment of a reader of traces: ``peer_reader.py TOOL``, with ``{scenario: [trace, ...]}`` on stdin.

Prints one line per scenario that starts with ``=``: the scenario and what the tool says, or the error that it raised.
"""

import json
import os
import sys
from typing import Any


def hta(traces: list[str]) -> dict[str, Any]:
    """Shares of HTA's temporal breakdown, percent, mean over the ranks."""
    from hta.trace_analysis import TraceAnalysis  # noqa: PLC0415 - only its own environment has it

    analysis = TraceAnalysis(trace_files=dict(enumerate(traces)), trace_dir=os.path.dirname(traces[0]))  # noqa: PTH120
    table = analysis.get_temporal_breakdown(visualize=False)
    names = {"compute": "compute_time_pctg", "non_compute": "non_compute_time_pctg", "idle": "idle_time_pctg"}
    return {"parts": {name: float(table[column].mean()) for name, column in names.items()}}


def torch_tb(traces: list[str]) -> dict[str, Any]:
    """The recommendations of torch-tb-profiler's overview, of all ranks."""
    from torch_tb_profiler.profiler.data import RunProfileData  # noqa: PLC0415 - only its own environment has it

    found: list[str] = []
    for rank, trace in enumerate(traces):
        data = RunProfileData.parse(f"worker{rank}", None, trace, None)
        data.process()
        data.analyze()
        found += data.recommendations
    return {"recommendations": found}


def main() -> None:
    read = {"HTA": hta, "torch-tb-profiler": torch_tb}[sys.argv[1]]
    for code, traces in json.load(sys.stdin).items():
        said: dict[str, Any]
        try:
            said = read(traces) if traces else {"error": "no trace was recorded"}
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is its answer
            said = {"error": f"{type(error).__name__}: {error}"}
        print("=" + json.dumps([code, said]), flush=True)


if __name__ == "__main__":
    main()
