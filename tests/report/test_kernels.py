"""What the report says of kernels, and what it says of those it does not know."""

import msgspec
import pytest

from profilerkit.model.report import Compute, HostCopy, Kernel
from profilerkit.model.run import Trust
from profilerkit.report import html, kernels, markdown, terminal
from tests.report.samples import SAMPLES


def report(**fields):
    return msgspec.structs.replace(SAMPLES["input_bound"](), **fields)


def facts(**fields):
    return {fact.label: (fact.value, fact.note) for fact in kernels.compute_facts(report(**fields))}


def plain(**fields):
    return Kernel(**{"name": "k", "kind": "math", "count": 1, "total_ns": 5, "median_ns": 5, "share": 0.1, **fields})


def test_kernels_are_held_against_the_peaks_of_the_device():
    found = facts()
    assert found["Judged by the peaks of"] == ("h100-sxm", "")
    assert found["Kind follows from shapes"] == ("93 % of kernel time", "names tell the rest")
    assert found["Those run at"][0] == "62 % of the roof"
    assert found["Arithmetic that follows from shapes"] == ("29.2 TFLOP per step", "from 97 % of the math time")
    assert found["Model FLOP utilisation"] == ("31 %", "derived, of 989 TFLOP/s in bf16")
    assert found["Of it recomputed"] == ("7.30 TFLOP per step", "utilisation with it 41 %")
    assert found["On matrix units"] == ("88 % of math time", "by kernel names")
    assert found["Kernels below 10 µs"] == ("1.6 % of kernel time", "")
    assert found["Faster than the peaks"][0] == "2.0 % of kernel time"


def test_copies_are_held_against_the_host_link():
    found = facts(compute=None)
    assert found == {
        "Copies to device, pageable": ("11.4 GB/s", "18 % of the host link's peak; 36.8 MiB in 2 copies per step"),
        "Copies to host": ("too small to rate", "5.5 copies per step"),
    }


def test_an_unknown_device_is_said_and_nothing_reads_as_zero():
    found = facts(compute=Compute(by_shape_ratio=0.0, flops_per_step=1e9), copies=())
    assert found["Judged by the peaks of"][0] == "not known"
    assert "not in the hardware table" in found["Judged by the peaks of"][1]
    assert found["Model FLOP utilisation"] == (
        "not known",
        "needs a known device, and shapes of nearly all math kernels",
    )
    known = facts(compute=Compute(spec="mi300x", by_shape_ratio=0.5), copies=())
    assert known["Model FLOP utilisation"] == ("not known", "needs shapes of nearly all math kernels")
    assert "Faster than the peaks" not in found
    assert "On matrix units" not in found


def test_a_cpu_run_only_counts_its_arithmetic():
    found = facts(
        compute=Compute(flops_per_step=1e9, recomputed_flops_per_step=0.0), copies=(), trust=Trust(mode="cpu")
    )
    assert found == {"Arithmetic that follows from shapes": ("1.00 GFLOP per step", "")}


def test_a_report_without_these_facts_says_nothing_of_them():
    assert facts(compute=None, copies=()) == {}


def test_the_table_shows_what_is_known_of_each_kernel():
    table = kernels.kernel_table(report())
    assert table.columns == (
        "Kernel",
        "Kind",
        "Launched by",
        "Calls",
        "Total",
        "Share",
        "Rate",
        "Of the roof",
    )
    math, by_name, bandwidth, comm = table.rows[:4]
    assert math[1:3] == ("math", "aten::addmm · Linear_131 · model.py(410): forward")
    assert math[-2:] == ("603 TFLOP/s", "76 %")
    assert (by_name[1], by_name[2], *by_name[-2:]) == ("math ?", "aten::bmm", "not known", "not known")
    assert (bandwidth[1], *bandwidth[-2:]) == ("bandwidth", "1.20 TB/s", "76 %")
    assert (comm[1], comm[2]) == ("communication", "not known")
    assert "question mark" in table.caption
    assert "Of the roof" in table.caption


def test_columns_nothing_is_known_for_are_left_out():
    table = kernels.kernel_table(report(kernels=(plain(),)))
    assert table.columns == ("Kernel", "Kind", "Calls", "Total", "Share")
    assert (table.text_columns, table.caption) == (2, "Streams overlap: shares need not sum to 100 %.")
    assert kernels.kernel_table(report(kernels=())) is None


def test_operators_of_a_cpu_run_are_launched_by_nobody():
    table = kernels.kernel_table(report(kernels=(plain(operator="k"),), trust=Trust(mode="cpu")))
    assert "Launched by" not in table.columns


@pytest.mark.parametrize("render", [terminal.render, markdown.render], ids=["terminal", "markdown"])
def test_the_short_reports_list_kernels_where_kernels_are_the_bound(render):
    text = render(SAMPLES["compute_bound"]())
    assert "Largest kernels" in text
    assert "76 %" in text
    assert "Together they run at 62 % of the roof; model FLOP utilisation 31 %." in " ".join(text.split())
    assert "Largest kernels" not in render(SAMPLES["input_bound"]())
    assert "Largest kernels" not in render(msgspec.structs.replace(SAMPLES["compute_bound"](), kernels=()))


def test_a_narrow_terminal_has_no_room_for_them():
    assert "Largest kernels" not in terminal.render(SAMPLES["compute_bound"](), width=50)


def test_a_short_name_is_the_operator_and_what_fits_of_the_kernel():
    (row,) = kernels.short_kernel_table(
        msgspec.structs.replace(
            SAMPLES["compute_bound"](), kernels=(plain(name="x" * 90 + "end", operator="aten::addmm"),)
        )
    ).rows
    assert row[0].startswith("aten::addmm · xxx")
    assert row[0].endswith("xend")
    assert len(row[0]) == 44


def test_the_page_shows_facts_of_a_run_whose_kernels_are_not_listed():
    copies = (HostCopy(direction="to host", memory="pinned", per_step=1.0, bytes_per_step=4.0, time_ns=5.0),)
    page = html.render(report(kernels=(), collectives=(), compute=None, copies=copies))
    assert "Kernels and communication" in page
    assert "Copies to host, pinned" in page
