"""Weaknesses of a recording: each counts once, and has its words beside it."""

from typing import Literal

import msgspec

DoubtKind = Literal[
    "untraced ranks",
    "framework",
    "unseen device",
    "cut file",
    "lost events",
    "traced steps",
    "slow steps",
    "odd step",
    "noise",
    "drift",
    "one end",
    "pressure",
    "steal",
    "clocks",
]


class Doubt(msgspec.Struct, frozen=True):
    """One thing that makes the judged numbers less sure than they look.

    Attributes:
        kind: what it is; confidence counts doubts and never reads their words.
        words: one sentence for the reader.
    """

    kind: DoubtKind
    words: str
