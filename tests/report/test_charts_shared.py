"""Figures of real traces: their points are the report's numbers."""

from pathlib import Path

import pytest

from profilerkit.api import analyze
from profilerkit.report.charts.collectives import collective_chart
from profilerkit.report.charts.roofline import roofline_chart
from profilerkit.units import format_decimal, format_ratio

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"

pytestmark = [
    pytest.mark.shared_traces,
    pytest.mark.skipif(not TRACES.is_dir(), reason=f"no shared traces beside the repository, at {TRACES}"),
]


def test_the_kernels_of_an_h100_lie_under_its_roof():
    report = analyze(TRACES / "qwen_h100" / "qwen_h100.json.gz")
    chart = roofline_chart(report)
    priced = sorted(
        (kernel for kernel in report.kernels if kernel.flops and kernel.bytes), key=lambda kernel: -kernel.priced_ns
    )
    assert [row[3] for row in chart.table.rows] == [
        format_decimal(kernel.flops * 1e9 / kernel.priced_ns, "FLOP/s") for kernel in priced
    ]
    assert [row[4] for row in chart.table.rows] == [format_ratio(kernel.efficiency) for kernel in priced]
    assert any(label.text == "memory 3.35 TB/s" for label in chart.labels)


def test_the_collectives_of_a_real_job_are_points_with_its_bandwidths():
    report = analyze(TRACES / "ddp8_control")
    chart = collective_chart(report)
    known = [row for row in report.collectives if row.bytes and row.bus_bytes_per_s]
    assert chart is not None or len(known) < 2
    if chart is not None:
        assert len(chart.table.rows) == len(known)
