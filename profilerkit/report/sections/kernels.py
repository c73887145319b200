"""Kernels and operators: how near to the device's peaks they run, which take most time, what the host link carries."""

from profilerkit.model.report import Compute, HostCopy, Kernel, Report
from profilerkit.report.blocks import Block, Cell, Fact, Facts, Name, Section, Table, Value
from profilerkit.report.charts.roofline import roofline_chart
from profilerkit.report.inert import inert
from profilerkit.report.wording import plural, share_text
from profilerkit.units import format_bytes, format_count, format_decimal, format_ratio

_TOP_ROWS = 200
_PLACE = 40
_KINDS = {"membw": "bandwidth", "comm": "communication"}
_UNKNOWN = "not known"
_BY_NAME = "A question mark means that the kind comes from the name alone."
_ROOF = "the least time their shapes allow on this device / the time taken, derived"


def section(report: Report) -> Section | None:
    """Kernels, the roofline and copies; ``None`` without any."""
    facts, table = _compute_facts(report), _kernel_table(report)
    chart = roofline_chart(report)
    blocks: list[Block] = [*((Facts(facts),) if facts else ()), *(block for block in (table, chart) if block)]
    if not blocks:
        return None
    top = sorted((kernel.share for kernel in report.kernels), reverse=True)[:3]
    noun = "operator" if report.trust.mode == "cpu" else "kernel"
    summary = f"{plural(len(report.kernels), noun)}, {len(top)} hold {share_text(sum(top))}" if top else "of the device"
    return Section("kernels", "Kernels", summary, tuple(blocks), prints=False)


def _compute_facts(report: Report) -> tuple[Fact, ...]:
    """What is known of all compute kernels together, and of the copies over the host link."""
    facts = _against_peaks(report.compute, cpu=report.trust.mode == "cpu") if report.compute else []
    return (*facts, *map(_copy_fact, report.copies))


def _against_peaks(compute: Compute, *, cpu: bool) -> list[Fact]:
    facts = []
    if not cpu:
        spec = inert(compute.spec or "", 40)
        none = "the device is not in the hardware table: efficiency is not known, and kinds come from names"
        facts.append(Fact("Judged by the peaks of", spec or _UNKNOWN, "" if spec else none))
        if compute.by_shape_ratio is not None:
            facts.append(Fact("Kind known from shapes", _of(compute.by_shape_ratio, "kernel time"), "the rest by name"))
    if compute.efficiency is not None:
        facts.append(Fact("Kernels of known shapes run at", f"{format_ratio(compute.efficiency)} of the roof", _ROOF))
    if compute.flops_per_step is not None:
        flops = format_decimal(compute.flops_per_step, "FLOP")
        priced = "" if compute.priced_ratio is None else f"from {_of(compute.priced_ratio, 'the math time')}"
        facts.append(Fact("Arithmetic known from shapes", f"{flops} per step", priced))
    if not cpu:
        facts.append(_utilisation(compute))
    if compute.recomputed_flops_per_step:
        again = format_decimal(compute.recomputed_flops_per_step, "FLOP")
        with_it = "" if compute.hfu is None else f"utilisation with it {format_ratio(compute.hfu)}"
        facts.append(Fact("Recomputed arithmetic", f"{again} per step", with_it))
    if not cpu and compute.tensor_core_ratio is not None:
        facts.append(Fact("On matrix units", _of(compute.tensor_core_ratio, "math time"), "by kernel names"))
    if not cpu and compute.small_ratio is not None:
        facts.append(Fact("Kernels below 10 µs", _of(compute.small_ratio, "kernel time")))
    if compute.beyond_ratio:
        why = "from a cache, by an algorithm that saves arithmetic, or priced wrongly; counted as fully efficient"
        facts.append(Fact("Faster than the peaks", _of(compute.beyond_ratio, "kernel time"), why))
    return facts


def _utilisation(compute: Compute) -> Fact:
    label = "Model FLOP utilisation"
    if compute.mfu is None or compute.peak_flops_per_s is None:
        device = "" if compute.spec else "a known device, and "
        return Fact(label, _UNKNOWN, f"needs {device}shapes of nearly all math kernels")
    peak = format_decimal(compute.peak_flops_per_s, "FLOP/s")
    return Fact(label, format_ratio(compute.mfu), f"derived, of {peak} in {inert(compute.precision or '', 20)}")


def _of(ratio: float, whole: str) -> str:
    return f"{share_text(ratio)} of {whole}"


def _copy_fact(copy: HostCopy) -> Fact:
    label = f"Copies {copy.direction}" + (f", {copy.memory}" if copy.memory else "")
    rate = "too small to rate" if copy.bytes_per_s is None else format_decimal(copy.bytes_per_s, "B/s")
    link = "" if copy.link_ratio is None else f"{format_ratio(copy.link_ratio)} of the host link's peak; "
    size = "" if copy.bytes_per_step is None else f"{format_bytes(copy.bytes_per_step)} in "
    count = "1 copy" if copy.per_step == 1 else f"{format_count(round(copy.per_step, 1))} copies"
    return Fact(label, rate, f"{link}{size}{count} per step")


def _kernel_table(report: Report) -> Table | None:
    """The kernels that took most time; ``None`` without any. Columns that nothing is known for are left out."""
    if not report.kernels:
        return None
    top = sorted(report.kernels, key=lambda kernel: -kernel.total_ns)[:_TOP_ROWS]
    columns = ("Kernel", "Kind", "Launched by", "Calls", "Total", "Share", "Rate", "Share of roof")
    known = {
        "Launched by": any(kernel.operator for kernel in top) and report.trust.mode != "cpu",
        "Rate": any(kernel.priced_ns for kernel in top),
        "Share of roof": any(kernel.efficiency is not None for kernel in top),
    }
    keep = [index for index, column in enumerate(columns) if known.get(column, True)]
    rows = tuple(tuple(cells[index] for index in keep) for cells in map(_cells, top))
    more = len(report.kernels) - len(rows)
    return Table(
        _caption(report, top),
        tuple(columns[index] for index in keep),
        rows,
        3 if known["Launched by"] else 2,
        f"{plural(more, 'kernel')} more in the JSON." if more else "",
        title="Kernels",
        searchable=True,
    )


def _caption(report: Report, top: list[Kernel]) -> str:
    if report.trust.mode == "cpu":
        return "On a CPU-only run these are operators."
    caption = "Streams overlap: shares need not sum to 100 %."
    if any(kernel.efficiency is not None for kernel in top):
        caption += f" Share of roof: {_ROOF}."
    if any(map(_by_name, top)):
        caption += f" {_BY_NAME}"
    return caption


def _cells(kernel: Kernel) -> tuple[Cell, ...]:
    return (
        Name(kernel.name, "kernel"),
        _kind(kernel),
        _launched_by(kernel),
        Value(kernel.count),
        Value(kernel.total_ns, "ns"),
        Value(kernel.share, "ratio"),
        _rate(kernel),
        _UNKNOWN if kernel.efficiency is None else Value(kernel.efficiency, "ratio"),
    )


def _by_name(kernel: Kernel) -> bool:
    return kernel.kind_source == "estimated" and kernel.kind != "comm"


def _kind(kernel: Kernel) -> str:
    return _KINDS.get(kernel.kind, inert(kernel.kind, 20)) + (" ?" if _by_name(kernel) else "")


def _launched_by(kernel: Kernel) -> str:
    # Of a file its own name: the directories are in the JSON.
    pieces = (kernel.operator, kernel.module, (kernel.line or "").rpartition("/")[2])
    return " · ".join(inert(piece, _PLACE) for piece in pieces if piece) or _UNKNOWN


def _rate(kernel: Kernel) -> str:
    """What a kernel reaches of what bounds it: arithmetic for math, traffic for the others."""
    if not kernel.priced_ns:
        return _UNKNOWN
    per_s = 1e9 / kernel.priced_ns
    if kernel.kind == "math" and kernel.flops:
        return format_decimal(kernel.flops * per_s, "FLOP/s")
    return format_decimal(kernel.bytes * per_s, "B/s") if kernel.bytes else _UNKNOWN
