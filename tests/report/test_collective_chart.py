"""Collectives by size and bandwidth: where the time goes, how fast it is there, and what is only a bound."""

import pytest

from profilerkit.model import revise as changed
from profilerkit.report import html
from profilerkit.report.sections.communication import collective_chart
from profilerkit.units import format_bytes, format_decimal
from tests.report.samples import COLLECTIVES, SAMPLES


@pytest.fixture
def report():
    return SAMPLES["multi_rank"]()


def of_rows(report, *rows):
    return collective_chart(changed(report, collectives=rows))


def test_the_title_says_where_the_time_goes_and_what_of_the_link_it_reaches(report):
    chart = collective_chart(report)
    assert chart.title == (
        "73 % of the time of collectives with known size and bandwidth goes to messages of 4.00 MiB, "
        "which reach 3.3 % of the link"
    )
    assert "Size or bandwidth is not known for 1 other kind, 40.0 ms in all." in chart.caption
    assert "Bus bandwidth is derived" in chart.caption
    known = of_rows(report, *COLLECTIVES[:2])
    assert known.title.startswith("73 % of the time of collectives goes to")
    assert "not known." not in known.caption


def test_the_table_has_the_reports_numbers(report):
    chart = collective_chart(report)
    assert len(chart.table.rows) == 2
    for cells, row in zip(chart.table.rows, COLLECTIVES, strict=False):
        assert cells[4] == format_bytes(row.bytes / row.count)
        assert cells[6].removeprefix("≥ ") == format_decimal(row.bus_bytes_per_s, "B/s")
    assert chart.table.rows[0] == (
        *("1 · all-reduce", "bfloat16", "4,800", "8", "4.00 MiB", "2.40 s", "14.7 GB/s", "3.3 %"),
    )
    assert chart.table.rows[1][-2:] == ("≥ 27.5 GB/s", "not known")


def test_what_holds_waiting_is_pale_and_named_as_a_lower_bound(report):
    chart = collective_chart(report)
    assert {shape.colour for shape in chart.shapes if shape.form == "point"} == {"communication", "communication pale"}
    assert ("communication pale", "At least: the time holds waiting") in chart.legend
    alone = of_rows(report, changed(COLLECTIVES[0], bandwidth_is_bound=True))
    assert alone.title == "Messages of 4.00 MiB reach at least 3.3 % of the link"


def test_the_line_is_the_peak_of_the_link_and_points_stand_below_it(report):
    chart = collective_chart(report)
    (line,) = [shape for shape in chart.shapes if shape.form == "dash"]
    height = float(line.path.split()[-1])
    assert chart.labels[0].text == "peak of the link: 450 GB/s"
    assert all(float(shape.path[1:-2].split()[1]) > height for shape in chart.shapes if shape.form == "point")


def test_without_a_known_link_several_points_are_compared_by_rate(report):
    bare = [changed(row, link_ratio=None, link_bytes_per_s=None) for row in COLLECTIVES]
    chart = of_rows(report, *bare)
    assert not [shape for shape in chart.shapes if shape.form == "dash"]
    assert chart.title.endswith("which reach 14.7 GB/s of bus bandwidth")
    assert "The peak of the device's link is not known." in chart.caption
    assert of_rows(report, bare[0]) is None


def test_without_sizes_and_bandwidths_there_is_no_figure():
    plain = SAMPLES["input_bound"]()
    assert collective_chart(plain) is None
    assert 'id="collective-bandwidth"' not in html.render(plain)


@pytest.mark.parametrize("size", [1, 5, 31, 32, 1_000, 1 << 45])
def test_every_size_has_an_axis_with_ticks(report, size):
    chart = of_rows(report, changed(COLLECTIVES[0], bytes=size * 4_800))
    assert 2 <= len(chart.x.ticks) <= 6
    assert all(0.0 <= tick.at <= 100.0 for tick in chart.x.ticks)
