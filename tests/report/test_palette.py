"""The palette's numbers: distances after colour-vision simulation, contrasts on the page and of labels."""

import re
from itertools import combinations

import numpy as np
import pytest

from profilerkit.report.chart import FILLS, INKS, contrast, css_variables, label_on
from profilerkit.report.html import asset

# Machado, Oliveira and Fernandes 2009, table 1, severity 1.0, linear RGB.
MACHADO = {
    "normal": np.eye(3),
    "protan": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deutan": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritan": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
SRGB_TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
WHITE = SRGB_TO_XYZ @ np.ones(3)


def linear(colour):
    srgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    ratio = SRGB_TO_XYZ @ np.clip(rgb, 0, 1) / WHITE
    f = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def closest_pair(scheme, vision):
    labs = [lab(MACHADO[vision] @ linear(colour)) for colour in FILLS[scheme].values()]
    return min(float(np.linalg.norm(one - other)) for one, other in combinations(labs, 2))


@pytest.mark.parametrize("vision", MACHADO)
@pytest.mark.parametrize("scheme", FILLS)
def test_the_two_closest_fills_stay_apart_for_every_colour_vision(scheme, vision):
    assert closest_pair(scheme, vision) >= 20


@pytest.mark.parametrize(
    ("scheme", "worst"),
    [
        ("light", {"normal": 23.0, "protan": 21.9, "deutan": 23.4, "tritan": 21.6}),
        ("dark", {"normal": 33.8, "protan": 29.0, "deutan": 25.6, "tritan": 27.1}),
    ],
)
def test_the_worst_pairs_are_the_published_ones(scheme, worst):
    assert {vision: closest_pair(scheme, vision) for vision in MACHADO} == pytest.approx(worst, abs=0.3)


@pytest.mark.parametrize(("scheme", "worst"), [("light", 3.03), ("dark", 4.30)])
def test_the_faintest_fill_has_the_published_contrast(scheme, worst):
    found = min(contrast(fill, INKS[scheme]["page"]) for fill in FILLS[scheme].values())
    assert found == pytest.approx(worst, abs=0.01)


@pytest.mark.parametrize("name", ["report.css", "report.js"])
def test_the_page_takes_every_colour_from_the_palette(name):
    assert re.findall(r"#[0-9A-Fa-f]{3,8}\b|\brgba?\((?!0,0,0,0\))|\bhsla?\(", asset(name)) == []


def test_every_family_has_its_own_fill_on_the_page():
    for family in FILLS["light"]:
        assert f".{family}{{--fill:var(--{family});--on:var(--on-{family})}}" in asset("first.css")


@pytest.mark.parametrize("scheme", FILLS)
def test_fills_stand_out_from_the_page_and_labels_from_the_fills(scheme):
    for fill in FILLS[scheme].values():
        assert contrast(fill, INKS[scheme]["page"]) >= 3.0
        assert contrast(label_on(fill), fill) >= 4.5


@pytest.mark.parametrize("scheme", INKS)
def test_every_text_colour_is_readable_on_the_page_and_on_raised_surfaces(scheme):
    inks = INKS[scheme]
    for name in ("text", "muted", "link", "high", "medium", "low", "good", "info"):
        assert contrast(inks[name], inks["page"]) >= 4.5, name
        assert contrast(inks[name], inks["raised"]) >= 4.5, name


def blended(colour, page, share):
    """What is seen of a colour that lets the page through."""
    pairs = [(int(colour[at : at + 2], 16), int(page[at : at + 2], 16)) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(share * own + (1 - share) * under):02X}" for own, under in pairs)


@pytest.mark.parametrize("scheme", INKS)
def test_a_pale_shade_still_stands_out_and_the_legend_shows_the_same(scheme):
    shades = re.findall(r"([^{}\n]*\.(?:pale|faint)[^{}]*)\{opacity:(\.\d+)\}", asset("report.css"))
    drawn = {who: float(opacity) for who, opacity in shades if ".box" in who or ".swatch" in who}
    assert set(drawn) == {".box .pale,.swatch.pale", ".box .faint,.swatch.faint"}
    page = INKS[scheme]["page"]
    for colour in (FILLS[scheme]["communication"], INKS[scheme]["text"]):
        pale, faint = (contrast(blended(colour, page, share), page) for share in drawn.values())
        assert pale >= 3.0
        assert 1.5 < faint < pale / 1.5 < contrast(colour, page) / 1.5 / 1.5


def test_contrast_has_the_known_ends():
    assert contrast("#FFFFFF", "#000000") == pytest.approx(21.0)
    assert contrast("#123456", "#123456") == pytest.approx(1.0)


def test_css_names_every_family_and_its_label():
    variables = css_variables("dark")
    assert "--input:#E0C031" in variables
    assert variables.count("--on-") == 6
