"""Which row of evidence each number of a sentence comes from."""

import re
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from profilerkit.report.records import EvidenceRow

# Bounded: a link does not wrap.
_NUMBER = r"[+−-]?\d{1,15}(?:,\d{3}){0,5}(?:\.\d{1,9})?"
_UNITS: dict[str, tuple[str, float]] = {
    "%": ("ratio", 0.01),
    "×": ("ratio", 1.0),
    "ns": ("time", 1.0),
    "µs": ("time", 1e3),
    "ms": ("time", 1e6),
    "s": ("time", 1e9),
    "min": ("time", 60e9),
    "h": ("time", 3600e9),
    "B": ("bytes", 1.0),
    **{f"{prefix}iB": ("bytes", 1024.0**power) for power, prefix in enumerate("KMGT", start=1)},
}
_UNIT = (
    r"(?:(?:[\s\u00a0]|(?=[%×]))"
    rf"(?P<unit>{'|'.join(_UNITS)}|°C|[kMGTP]?(?:FLOP|B|W|Hz)(?:/s)?|\w+/s)(?![\w/]))?"
)
#: A number with its unit, or both ends of a range, or a count and what it is counted of; a digit within a name,
#: a version or a date is none, nor is a side of a shape, ``64 × 128``.
TOKEN = re.compile(
    rf"(?<![\w.,:#/+−-])(?<!\d\s×\s)(?P<low>{_NUMBER})(?:(?P<between>–|\sto\s|\sof\s(?=\d[\d,]*\s[a-z]))(?P<high>{_NUMBER}))?"
    rf"(?![.,:/]?\d|[-_]\w|\s×\s\d){_UNIT}(?!\w|[-.]\d)"
)
_SAMPLE = re.compile(r"\bn ([\d,]+)")
_BASE = re.compile(r"\b(?:of|every) $")
_STOP = re.compile(r"[.,;:()]")
_WORD = re.compile(r"[a-z]{4,}")
#: Words behind a count in which what is counted is named.
_NAMING_WORDS = 4
#: A smaller count without its noun may be any other number of the finding.
_SMALLEST_NAMELESS = 3


class Quantity(msgspec.Struct, frozen=True):
    """A printed number in the base unit of its kind, and the half of its last digit."""

    kind: str
    value: float
    slack: float

    def is_close(self, other: "Quantity") -> bool:
        """Whether both may be print of one number: ``64 % less`` is ``−64 %``, and the coarser print rounds."""
        slack = max(self.slack, other.slack) * (1 + 1e-9)
        return self.kind == other.kind and abs(abs(self.value) - abs(other.value)) <= slack


class _Row(msgspec.Struct, frozen=True):
    """What a row of evidence shows: its numbers, how many observations, and the words of its label."""

    numbers: tuple[Quantity, ...]
    n: Quantity | None
    words: frozenset[str]


def cited(
    token: re.Match[str],
    own: Sequence[EvidenceRow],
    shared: Sequence[EvidenceRow],
    about: str = "",
    *,
    is_finding: bool = False,
) -> EvidenceRow | None:
    """The row that a number of a sentence is of; ``None`` where no row shows it.

    Args:
        token: a match of ``TOKEN``; the words around it name what a count is of.
        own: rows of what the sentence is about: a number may be rounded otherwise than there.
        shared: rows of everything else: a number must be the same, and a count must be named.
        about: what names the number where it stands alone.
        is_finding: the sentence is a finding's: of shared rows it only tells the whole of a part, ``of 61.9 ms``.
    """
    wanted, nouns = _quantities(token), _nouns(about) | _around(token)
    if not wanted[0].kind:
        named = _counted(wanted[0], nouns, own) or _counted(wanted[0], nouns, shared)
        return named or (None if _is_proposed(token) else _nameless(wanted[0], own))
    found = _best(nouns, [row for row in own if _shows(wanted, _read(row), is_own=True)])
    if found is not None or (is_finding and not _BASE.search(token.string[: token.start()])):
        return found
    known = [row for row in shared if _shows(wanted, _read(row), is_own=False)]
    # Nothing, everything and 1 are said of many things; two times may be the same by chance.
    is_common = wanted[0].kind == "time" and not is_finding
    return _best(nouns, known, named=is_common or any(one.value in (0.0, 1.0) for one in wanted))


def _around(token: re.Match[str]) -> frozenset[str]:
    """What the words beside a number name: those behind it, and the two before it."""
    before = _STOP.split(token.string[: token.start()])[-1]
    behind = _STOP.split(token.string[token.end() :])[0]
    return _nouns(behind) | _nouns(" ".join(before.split()[-2:]))


def _shows(wanted: Sequence[Quantity], row: _Row, *, is_own: bool) -> bool:
    """Whether the row has all of these numbers; one of another thing must be the same to the last digit."""

    def same(one: Quantity, other: Quantity) -> bool:
        return one.is_close(other) if is_own else (one.kind, one.value) == (other.kind, other.value)

    return all(any(same(one, known) for known in row.numbers) for one in wanted)


def _counted(count: Quantity, nouns: frozenset[str], rows: Sequence[EvidenceRow]) -> EvidenceRow | None:
    """The row of this count whose label shares most words with what is counted, at least one."""
    found = _best(nouns, [row for row in rows if count in _read(row).numbers], named=True)
    return found or _best(nouns, [row for row in rows if count == _read(row).n], named=True)


def _best(nouns: frozenset[str], rows: Sequence[EvidenceRow], *, named: bool = False) -> EvidenceRow | None:
    """The row whose label shares most of these words, the first of several; at least one word where ``named``."""
    shared = [len(nouns & _read(row).words) for row in rows]
    most = max(shared, default=0)
    return rows[shared.index(most)] if rows and (most or not named) else None


def _nameless(count: Quantity, rows: Sequence[EvidenceRow]) -> EvidenceRow | None:
    if abs(count.value) < _SMALLEST_NAMELESS:
        return None
    return next((row for row in rows if count in _read(row).numbers), None)


def _is_proposed(token: re.Match[str]) -> bool:
    """Whether it is what a setting is to be: ``num_workers 0 → 2``."""
    return token.string[: token.start()].rstrip().endswith("→")


@lru_cache(maxsize=4096)
def _read(row: EvidenceRow) -> _Row:
    texts = (row.value, row.interval, row.also)
    numbers = [quantity for text in texts for token in TOKEN.finditer(text) for quantity in _quantities(token)]
    sample = _SAMPLE.search(row.basis)
    n = _quantity(sample[1], "", 1.0) if sample else None
    return _Row(tuple(numbers), n, _nouns(row.label, _NAMING_WORDS * 4))


def _quantities(token: re.Match[str]) -> tuple[Quantity, ...]:
    """Both ends of a range; of ``3 of 61`` the first, which is what is told."""
    unit = token["unit"] or ""
    kind, scale = _UNITS.get(unit, (unit, 1.0))
    ends = [token["low"], *([token["high"]] if token["high"] and "of" not in token["between"] else [])]
    return tuple(_quantity(end, kind, scale) for end in ends)


def _quantity(text: str, kind: str, scale: float) -> Quantity:
    plain = text.replace(",", "").replace("−", "-")
    decimals = len(plain.partition(".")[2])
    return Quantity(kind, round(float(plain) * scale, 9), 0.5 * 10**-decimals * scale)


def _nouns(text: str, most: int = _NAMING_WORDS) -> frozenset[str]:
    """The first words of a text in the singular."""
    words = [word for word in re.split(r"[^a-z]+", text.lower()) if word][:most]
    return frozenset(word.removesuffix("s") for word in words if _WORD.fullmatch(word))
