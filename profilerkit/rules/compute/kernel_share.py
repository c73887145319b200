"""Evidence of the rules about kernels."""

from profilerkit.model.finding import Evidence, Source


def kernel_share(
    label: str, share: float | None, origin: str, n: int | None = None, source: Source = "measured"
) -> Evidence:
    """Return the share of the step that ``n`` calls, or the kernels of ``n`` steps, take."""
    return Evidence(f"{label}, share of the step", share, "ratio", source, origin, n=n)
