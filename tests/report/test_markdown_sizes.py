"""Markdown of real traces, and of a report in which everything was found: small, and whole sentences."""

import json
import re
from functools import cache
from pathlib import Path

import pytest

from profilerkit import analyze
from profilerkit.model.change import revise
from profilerkit.report import markdown
from profilerkit.report.findings import cards_of
from tests.report.samples import SAMPLES

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"
MANIFEST = SHARED / "MANIFEST.json"


@cache
def traces():
    """Name to files of the traces that are Kineto's."""
    known = json.loads(MANIFEST.read_text("utf-8")) if MANIFEST.is_file() else {}
    return known


def test_x():
    print(list(traces())[:3], type(traces()))
    print(cards_of)
