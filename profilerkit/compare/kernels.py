"""Find which kernels and operators changed most, by their time in a judged step."""

from collections.abc import Iterator, Mapping

from profilerkit.compare.parts import doubt
from profilerkit.compare.shares import is_traced
from profilerkit.compare.spans import VISIBLE_RATIO
from profilerkit.compare.steps import SMALLEST_RATIO
from profilerkit.model.diff import KernelChange, KernelOf
from profilerkit.model.report import MOST_KERNELS, Report

#: Changes that a comparison keeps (a choice).
_KEPT = 20

#: The kernels of something, and their ns per step.
_Times = Mapping[str, Mapping[str, float]]


def kernel_changes(before: Report, after: Report) -> tuple[KernelChange, ...]:
    """Return kernels and operators, the largest change first; empty unless both sides list them of the same device.

    A report lists only its ``MOST_KERNELS`` largest kernels. The time of any other is not known, but at most the
    smallest that is listed: its change is judged by that.
    """
    sides = (before, after)
    if len({side.trust.mode for side in sides}) > 1 or not all(_is_known(side) for side in sides):
        return ()
    unlisted = _unlisted_ns(before), _unlisted_ns(after)
    least_ns = SMALLEST_RATIO * before.step_times.mean if before.step_times else 0.0
    found = []
    for of, name, *times in _told(before, after):
        first, second = (bound if own is None else own for own, bound in zip(times, unlisted, strict=True))
        moved_ns = abs(second - first)
        is_real = moved_ns >= least_ns and moved_ns > doubt(first, second, VISIBLE_RATIO)
        known = [0.0 if own is None and not bound else own for own, bound in zip(times, unlisted, strict=True)]
        row = KernelChange(name=name, of=of, before_ns=known[0], after_ns=known[1], is_real=is_real)
        found.append((-moved_ns, of, name, row))
    return tuple(row for *_, row in sorted(found, key=lambda entry: entry[:3])[:_KEPT])


def _is_known(report: Report) -> bool:
    kernels = report.kernels
    return bool(kernels) and is_traced(report) and all(kernel.per_step_ns is not None for kernel in kernels)


def _unlisted_ns(report: Report) -> float:
    """The most that a kernel which is not listed takes; 0 where all are listed."""
    times = [kernel.per_step_ns or 0.0 for kernel in report.kernels]
    return min(times) if len(times) >= MOST_KERNELS else 0.0


def _told(before: Report, after: Report) -> Iterator[tuple[KernelOf, str, float | None, float | None]]:
    """Kernels and operators with their time on both sides; an operator of one same kernel says no more than that."""
    kernels = tuple(
        {kernel.name: {kernel.name: kernel.per_step_ns or 0.0} for kernel in side.kernels} for side in (before, after)
    )
    is_host = before.trust.mode == "cpu"
    for name, first, second in _joined(*kernels):
        yield "operator" if is_host else "kernel", name, _sum(first), _sum(second)
    for name, first, second in () if is_host else _joined(_operators(before), _operators(after)):
        if len({*first, *second}) > 1:
            yield "operator", name, _sum(first), _sum(second)


def _joined(before: _Times, after: _Times) -> Iterator[tuple[str, Mapping[str, float], Mapping[str, float]]]:
    for name in dict.fromkeys((*before, *after)):
        yield name, before.get(name, {}), after.get(name, {})


def _operators(report: Report) -> _Times:
    found: dict[str, dict[str, float]] = {}
    for kernel in report.kernels:
        if kernel.operator:
            found.setdefault(kernel.operator, {})[kernel.name] = kernel.per_step_ns or 0.0
    return found


def _sum(times: Mapping[str, float]) -> float | None:
    return sum(times.values()) if times else None
