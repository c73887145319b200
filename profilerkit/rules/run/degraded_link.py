"""RU007: the PCIe link runs below its width or generation."""

from functools import partial

from profilerkit.analysis.surroundings import HostLink
from profilerkit.analysis.whatif import at_most
from profilerkit.model.finding import Evidence, Fix, Source
from profilerkit.rules.api import SMALLEST_SAVING, Facts, MissingData, NotApplicable, Passed, Result, Rule, fired
from profilerkit.units import format_ratio

#: Parts of the step in which the device only copies from or to the host.
_COPIES = ("input.h2d", "sync.d2h", "mem.offload")


class DegradedLink(Rule, frozen=True):
    """Find a PCIe link below its best rate in {fewest_samples} or more samples of a busy device.

    Why it costs: Copies between host and device take longer at a lower rate.

    Example:
        $ nvidia-smi --query-gpu=pcie.link.width.current --format=csv
    Use instead:
        $ nvidia-smi --query-gpu=pcie.link.width.max --format=csv
    How it is measured: Generation and lanes are sampled while the device is busy. The best rate seen is compared with
        the best that device and system allow. The saving is at most the share of copies × (1 - rate / best rate).
    When it is wrong: An idle link slows down to save power, so idle samples do not count. Virtual machines can report
        another width.
    Sources: https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html
    """

    code = "RU007"
    summary = "The PCIe link runs below its width or generation"

    fewest_samples: int = 5  #: a link takes a moment to speed up (a choice)

    def check(self, facts: Facts) -> Result:
        if facts.mode == "cpu":
            return NotApplicable("no device")
        link = facts.surroundings.link
        if link is None or link.samples < self.fewest_samples:
            hint = "let the run go on for some seconds with NVML: profilerkit.profile(..., nvml=True)"
            return MissingData("the link was not sampled while the device was busy", hint)
        if link.generation >= link.generation_max and link.width >= link.width_max:
            return Passed(f"the link runs at its best: generation {link.generation}, {link.width} lanes")
        copies = facts.share(*_COPIES)
        bound = copies * (1.0 - link.rate_ratio)
        return fired(
            facts,
            bound=None,
            title=f"The PCIe link runs at {format_ratio(link.rate_ratio)} of its rate",
            why=f"Copies from and to the host take {format_ratio(copies)} of the step with nothing beside them.",
            evidence=(*_evidence(facts, link), facts.share_evidence("Copies, share of the step", *_COPIES)),
            at_most="high",
            saving=at_most(bound, 0.0) if bound >= SMALLEST_SAVING else None,
            fix=Fix(
                text=f"{_change(link)}: reseat the device or its riser, then look at the slot's settings.",
                code="nvidia-smi -q -d PCI",
            ),
            confirm="The generation and the lanes must be the best ones while the device is busy.",
        )


def _evidence(facts: Facts, link: HostLink) -> tuple[Evidence, ...]:
    rows: tuple[tuple[str, float, str, Source, tuple[str, ...]], ...] = (
        ("PCIe generation", link.generation, "count", "measured", ("gpu.pcie_generation",)),
        ("Best PCIe generation of device and system", link.generation_max, "count", "measured", ()),
        ("PCIe lanes", link.width, "count", "measured", ("gpu.pcie_width",)),
        ("Most PCIe lanes of device and system", link.width_max, "count", "measured", ()),
        ("Rate of its best", link.rate_ratio, "ratio", "derived", ()),
    )
    row = partial(facts.evidence, origin="NVML, while the device was busy", n=link.samples)
    return tuple(row(label, value, unit, source=source, behind=behind) for label, value, unit, source, behind in rows)


def _change(link: HostLink) -> str:
    pairs = (("generation", link.generation, link.generation_max), ("lanes", link.width, link.width_max))
    text = ", ".join(f"{name} {now} → {best}" for name, now, best in pairs if now < best)
    return f"PCIe {text}"
