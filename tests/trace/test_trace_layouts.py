"""Real traces, compressed and laid out anew: the report is the same to the last digit.

That any two layouts have the same columns is tested in test_trace_shared.py; here are the two that differ most.
"""

import gzip

import msgspec
import pytest
from test_trace_shared import FILES, TRACES

from profilerkit.api import analyze

#: Of larger files only the columns are compared, in test_trace_shared.py: what they have beyond these is length.
MOST_BYTES = 1_200_000
SMALL = [file for file in FILES if file.stat().st_size <= MOST_BYTES]

pytestmark = [
    pytest.mark.shared_traces,
    pytest.mark.skipif(not FILES, reason=f"no shared traces beside the repository, at {TRACES}"),
]


def report_of(path):
    """The report as JSON, without when it was made."""
    report = analyze(path)
    return msgspec.json.encode(msgspec.structs.replace(report, run=msgspec.structs.replace(report.run, created="")))


@pytest.mark.parametrize("file", SMALL, ids=lambda file: f"{file.parent.name}/{file.name.split('.')[0]}")
def test_report_does_not_depend_on_layout_or_compression(file, tmp_path):
    text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    indented = msgspec.json.format(text, indent=3)
    assert len(indented) > 1.05 * len(text)
    reports = []
    for layout, content in (
        ("indented", indented),
        ("compact gzip", gzip.compress(msgspec.json.format(text, indent=-1), 1)),
    ):
        path = tmp_path / layout / "trace.json"
        path.parent.mkdir()
        path.write_bytes(content)
        reports.append(report_of(path))
    assert reports[0] == reports[1]
