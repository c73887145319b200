"""Figures of real traces: their points are the report's numbers."""

from pathlib import Path

import pytest

from profilerkit.api import analyze
from profilerkit.report.sections.communication import collective_chart
from profilerkit.report.sections.kernels import roofline_chart
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
    report = analyze(TRACES / "nccl_args" / "nccl_args.json.gz")
    chart = collective_chart(report)
    # 15 all-reduces of 306,684,384 bytes together.
    assert chart.table.rows[0][:5] == ("1 · all-reduce", "Float", "15", "2", "19.5 MiB")
    rates = [format_decimal(row.bus_bytes_per_s, "B/s") for row in report.collectives]
    assert sorted(row[6].removeprefix("≥ ") for row in chart.table.rows) == sorted(rates)
    assert chart.title.startswith(
        "Nearly all the time of collectives goes to messages of 19.5 MiB, which reach at least"
    )
