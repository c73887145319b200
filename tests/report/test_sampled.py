"""Sampled signals as tables."""

import re
from pathlib import Path

from profilerkit.analysis import samples
from profilerkit.model import revise
from profilerkit.model.run import Series
from profilerkit.report.sections.samples import section
from profilerkit.units import format_value
from tests.report.samples import SAMPLES


def tables(*series):
    report = next(iter(SAMPLES.values()))
    report = report() if callable(report) else report
    found = section(revise(report, run=revise(report.run, samples=series)))
    blocks = found.blocks if found else ()
    return {heading.text: table for heading, table in zip(blocks[::2], blocks[1::2], strict=True)}


def one(name, unit="ratio", **fields):
    return Series(name=name, unit=unit, n=3, mean=0.5, p10=0.4, p90=0.6, maximum=1.0, rank=0, **fields)


def test_signals_stand_in_groups_under_their_words():
    found = tables(one("host.cpu"), one("gpu.sm_active"), one("gpu.utilization"), one("host.net_rx", "bytes_per_s"))
    assert list(found) == ["Device", "Processors", "Disk and network"]
    assert [row[0] for row in found["Device"].rows] == ["A kernel runs", "Multiprocessors with work"]
    assert found["Device"].columns == ("Signal", "n", "p10", "Mean", "p90", "Maximum")
    assert found["Device"].rows[0] == ("A kernel runs", "3", "40 %", "50 %", "60 %", "100 %")


def test_a_trend_is_told_as_derived():
    growing = Series(
        name="host.process_memory",
        unit="bytes",
        n=20,
        mean=2**30,
        p10=2**30,
        p90=2**30,
        maximum=2**30,
        slope_per_s=2**20,
    )
    table = tables(growing, one("host.memory_pressure"))["Memory of the host"]
    assert table.columns[-1] == "Trend (derived)"
    assert [row[-1] for row in table.rows] == ["+1.00 MiB/s", ""]


def test_ranks_are_told_apart_only_where_there_are_several():
    other = Series(name="host.cpu", unit="ratio", n=3, mean=0.5, p10=0.4, p90=0.6, maximum=1.0, rank=1)
    table = tables(one("host.cpu"), other)["Processors"]
    assert [row[:2] for row in table.rows] == [("All processors busy", "0"), ("All processors busy", "1")]


def test_a_name_nobody_knows_is_shown_and_harmless():
    table = tables(one("</script><b>\x1b[31m"))["Other"]
    assert "\x1b" not in table.rows[0][0]


def test_every_signal_that_is_sampled_has_words():
    fields = {"gpu": samples._GPU_FIELDS, "host": samples._HOST_FIELDS, "allocator": samples._ALLOCATOR_FIELDS}
    named = {samples._named(kind, field)[0] for kind, known in fields.items() for field in known}
    written = set(re.findall(r'"((?:gpu|host|allocator)\.\w+)"', Path(samples.__file__).read_text("utf-8")))
    assert len(named | written) > 60
    assert "Other" not in tables(*map(one, sorted(named | written)))


def test_no_samples_are_no_tables():
    assert tables() == {}


def test_rates_and_power_are_read_at_a_glance():
    assert format_value(0.0, "bytes_per_s") == "0 B/s"
    assert format_value(2.05e9, "bytes_per_s") == "2.05 GB/s"
    assert format_value(312_500, "mW") == "312 W"
    assert format_value(0.0, "per_s") == "0/s"
