"""Find what is not the same about two runs: hardware, work, loader, settings, software."""

from collections import Counter
from collections.abc import Iterator, Mapping

from profilerkit.model.diff import Difference, Group
from profilerkit.model.report import Report

#: Settings of the recording that say nothing about the program that was recorded.
_NOT_COMPARED = {"quiet", "analyze", "enabled"}


def differences(before: Report, after: Report) -> tuple[Difference, ...]:
    """All of them, hardware first. What only one side tells counts: a setting may have been set or removed."""
    found: list[Difference] = []
    for (group, first), (_, second) in zip(_told(before), _told(after), strict=True):
        for name in dict.fromkeys((*first, *second)):
            old, new = first.get(name), second.get(name)
            if old != new:
                found.append(Difference(group=group, name=name, before=old, after=new))
    return tuple(found)


def _told(report: Report) -> Iterator[tuple[Group, Mapping[str, str]]]:
    run = report.run
    yield (
        "hardware",
        _known(
            {
                "device": ", ".join(run.devices) or None,
                "processor": ", ".join(run.processors) or None,
                "usable cores": None if run.usable_cores is None else f"{run.usable_cores:g}",
            }
        ),
    )
    batches = run.batches_per_step
    yield (
        "work",
        _known(
            {
                "world size": _text(run.world_size),
                "batch size": _text(run.batch_size),
                "batches per step": None if batches is None else f"{batches:.0f}",
                "precision": _precision(report),
                "command": run.command,
            }
        ),
    )
    yield "loader", loader_settings(report)
    yield "settings", {name: value for name, value in run.settings.items() if name not in _NOT_COMPARED}
    yield "software", run.versions


def _precision(report: Report) -> str | None:
    """The type that most FLOPs are computed in, else the one of most math time, as far as known."""
    if report.compute and report.compute.precision:
        return report.compute.precision
    time_ns: Counter[str] = Counter()
    for kernel in report.kernels:
        if kernel.kind == "math" and kernel.precision:
            time_ns[kernel.precision] += kernel.total_ns
    return time_ns.most_common(1)[0][0] if time_ns else None


def loader_settings(report: Report) -> dict[str, str]:
    """Settings of the training loader by name, as text; without a known loader there are none."""
    loader = report.run.loader
    if loader is None:
        return {}
    return _known({name: _text(getattr(loader, name)) for name in loader.__struct_fields__ if name != "batch_size"})


def _known(pairs: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in pairs.items() if value is not None}


def _text(value: object) -> str | None:
    return None if value is None else str(value)
