"""The roofline: which kernels are on it, how near they come, and that it is absent where the peaks are not known."""

import re

import pytest

from profilerkit.model import revise as changed
from profilerkit.report import html
from profilerkit.report.sections.kernels import roofline_chart
from tests.report.samples import SAMPLES


@pytest.fixture
def report():
    return SAMPLES["input_bound"]()


def points(chart):
    """Places of the points, in percent from the left and upper end."""
    paths = [shape.path for shape in chart.shapes if shape.form == "point"]
    return [tuple(map(float, re.fullmatch(r"M(\S+) (\S+)h0", path).groups())) for path in paths]


def lines(chart):
    return [
        [tuple(map(float, pair.split())) for pair in s.path[1:].split("L")] for s in chart.shapes if s.form != "point"
    ]


def test_kernels_with_arithmetic_and_traffic_are_points_and_rows_and_no_others(report):
    chart = roofline_chart(report)
    known = [kernel for kernel in report.kernels if kernel.flops and kernel.bytes]
    assert len(points(chart)) == len(chart.table.rows) == len(known) == 6
    first = known[0]
    assert chart.table.rows[0][1:] == ("bf16", "503", "603 TFLOP/s", "76 %", "2.40 s")
    assert first.flops / first.bytes == pytest.approx(503, abs=0.5)
    assert first.flops * 1e9 / first.priced_ns == pytest.approx(603e12, rel=1e-3)


def test_the_title_says_how_much_of_the_roof_the_numbered_kernels_reach(report):
    chart = roofline_chart(report)
    assert (
        chart.title
        == "The 5 largest kernels with known arithmetic run at 76 % of the bf16 roof of the NVIDIA H100 80GB HBM3"
    )
    one = roofline_chart(changed(report, kernels=report.kernels[:1]))
    assert (
        one.title
        == "The largest kernel with known arithmetic runs at 76 % of the bf16 roof of the NVIDIA H100 80GB HBM3"
    )


def test_the_roof_is_named_by_the_types_in_use_and_a_device_that_is_not_known_by_none(report):
    kernels = (report.kernels[0], changed(report.kernels[0], precision="fp32"))
    several = changed(report, kernels=kernels, run=changed(report.run, devices=("NVIDIA L4", "NVIDIA H100")))
    assert roofline_chart(several).title.endswith("of the bf16 and fp32 roofs of the device")


def test_time_weighs_what_the_kernels_reach(report):
    base = report.kernels[0]
    kernels = (changed(base, priced_ns=900, efficiency=0.5), changed(base, priced_ns=100, efficiency=1.0))
    assert "at 55 % of" in roofline_chart(changed(report, kernels=kernels)).title


def test_points_that_lie_together_share_their_numbers(report):
    chart = roofline_chart(report)
    # All of the sample's kernels run at the same rate.
    assert [label.text for label in chart.labels if label.text[0].isdigit()] == ["1, 2, 3, 4, 5"]
    assert len(chart.legend) <= 7


def test_the_roof_bends_at_the_ridge_and_no_point_of_a_known_rate_is_above_it(report):
    chart = roofline_chart(report)
    diagonal, level = lines(chart)
    assert diagonal[-1] == level[0]
    assert level[0][1] == level[1][1]
    assert level[1][0] == 100.0
    assert all(y > level[0][1] for _, y in points(chart))
    assert [label.text for label in chart.labels][:2] == ["bf16 989 TFLOP/s", "memory 3.35 TB/s"]


def test_each_type_in_use_has_its_roof(report):
    kernels = (report.kernels[0], changed(report.kernels[0], precision="tf32"))
    chart = roofline_chart(changed(report, kernels=kernels))
    assert [label.text for label in chart.labels][:2] == ["bf16 989 TFLOP/s", "tf32 495 TFLOP/s"]
    assert len(lines(chart)) == 3


@pytest.mark.parametrize(
    "compute", [None, {"peak_bytes_per_s": None}, {"peaks_flops_per_s": {}}, {"peaks_flops_per_s": {"fp8": 1e15}}]
)
def test_without_the_peaks_there_is_no_figure(report, compute):
    compute = None if compute is None else changed(report.compute, **compute)
    bare = changed(report, compute=compute)
    assert roofline_chart(bare) is None
    assert 'id="roofline"' not in html.render(bare)


def test_without_priced_kernels_there_is_no_figure(report):
    assert roofline_chart(changed(report, kernels=report.kernels[1:2])) is None


def test_the_page_shows_it(report):
    assert 'id="roofline"' in html.render(report)
