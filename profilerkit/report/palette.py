"""The colours of the report: one per family, for light and dark pages, and the label colour for each fill.

The twelve fills were searched so that the two closest of a page stay CIE76 ΔE 20 apart for normal vision and after
Machado 2009 simulation of protanopia, deuteranopia and tritanopia, with at least 3:1 against the page.
"""

from typing import Literal

from profilerkit.model.step import Family

Scheme = Literal["light", "dark"]

FILLS: dict[Scheme, dict[Family, str]] = {
    "light": {
        "compute": "#466075",
        "memory": "#0E895C",
        "communication": "#833B1D",
        "input": "#C07333",
        "overhead": "#B405D4",
        "other": "#8B95A3",
    },
    "dark": {
        "compute": "#4881B4",
        "memory": "#16F3FF",
        "communication": "#FD956D",
        "input": "#E0C031",
        "overhead": "#EC29FF",
        "other": "#9C9EA0",
    },
}

#: Page, text, muted text, hairline, raised surface, link, and the four tones of a verdict or finding.
INKS: dict[Scheme, dict[str, str]] = {
    "light": {
        "page": "#FFFFFF",
        "text": "#182230",
        "muted": "#4A5769",
        "rule": "#D9DEE5",
        "raised": "#F5F7F9",
        "link": "#0B57C2",
        "high": "#A4161A",
        "medium": "#7A4E00",
        "low": "#0B57C2",
        "good": "#0B6B45",
        "info": "#4A5769",
    },
    "dark": {
        "page": "#15181D",
        "text": "#E8ECF1",
        "muted": "#A9B4C2",
        "rule": "#343B45",
        "raised": "#1D2229",
        "link": "#8AB8FF",
        "high": "#FF8A80",
        "medium": "#F2B84B",
        "low": "#8AB8FF",
        "good": "#6FD3A3",
        "info": "#A9B4C2",
    },
}

_LABELS = ("#FFFFFF", "#000000")


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2) of ``#RRGGBB``, 0 to 1."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Contrast ratio (WCAG 2) of two colours, 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def label_on(fill: str) -> str:
    """The label colour with the higher contrast on ``fill``."""
    return max(_LABELS, key=lambda label: contrast(label, fill))


def css_variables(scheme: Scheme) -> str:
    """The scheme as CSS custom properties, for example ``--input:#C07333;--on-input:#000000``."""
    pairs = [f"--{name}:{colour}" for name, colour in INKS[scheme].items()]
    for family, fill in FILLS[scheme].items():
        pairs += [f"--{family}:{fill}", f"--on-{family}:{label_on(fill)}"]
    return ";".join(pairs)
