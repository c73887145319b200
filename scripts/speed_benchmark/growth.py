"""A small trace repeated to any size, in its own bytes, with times and ids that go on instead of starting again."""

import argparse
import gzip
import re
from pathlib import Path

#: What grows from copy to copy: times by the length of the base, ids and step numbers by their count in it.
#: Only the digits before a decimal point are replaced, so nanoseconds stay exact.
_COUNTED = re.compile(
    r'(?P<key>"ts": |"correlation": |"External id": |"Record function id": |"Ev Idx": |"Sequence number": |"Seq": '
    r'|"ph": "[sf]", "id": |ProfilerStep#)(?P<number>\d+)'
)
_TIMES = re.compile(r'"ts": ([\d.]+), "dur": ([\d.]+)')
_PAUSE_US = 400
_LEVEL = 6


def grow(base: str, size_bytes: int, out: Path) -> int:
    """Write ``base`` over and over until about ``size_bytes`` are reached; gives the number of events written."""
    opening = re.search(r'"traceEvents": \[\s*', base)
    if opening is None:
        raise ValueError("the base is not a Kineto trace in its native layout")
    closing = base.rindex("\n  ]")
    head, body, tail = base[: opening.end()], base[opening.end() : closing], base[closing:]
    pieces: list[str] = []
    keys: list[str] = []
    numbers: list[int] = []
    last = 0
    for found in _COUNTED.finditer(body):
        pieces.append(body[last : found.start("number")].replace("%", "%%"))
        keys.append(found["key"])
        numbers.append(int(found["number"]))
        last = found.end()
    template = "%d".join([*pieces, body[last:].replace("%", "%%")])
    strides = _strides(keys, numbers, body)
    steps = [strides[key] for key in keys]
    copies = max(1, round((size_bytes - len(head) - len(tail)) / (len(body) + 2)))
    with out.open("w", encoding="utf-8", newline="\n") as file:
        file.write(head)
        for copy in range(copies):
            file.write(",\n" if copy else "")
            file.write(template % tuple(numbers))
            numbers = [number + step for number, step in zip(numbers, steps, strict=True)]
        file.write(tail)
    return copies * len(re.findall(r'"ph": "', body))


def _strides(keys: list[str], numbers: list[int], body: str) -> dict[str, int]:
    """How far each kind of number moves from one copy to the next."""
    strides = {}
    for key in set(keys):
        of_kind = [number for found, number in zip(keys, numbers, strict=True) if found == key]
        strides[key] = max(of_kind) - min(of_kind) + 1
    times = [(float(start), float(length)) for start, length in _TIMES.findall(body)]
    first = min(start for start, _ in times)
    strides['"ts": '] = int(max(start + length for start, length in times) - first) + _PAUSE_US
    return strides


def compress(plain: Path, out: Path) -> None:
    """Write ``plain`` as gzip, in pieces."""
    with plain.open("rb") as file, gzip.open(out, "wb", compresslevel=_LEVEL) as packed:
        while block := file.read(1 << 20):
            packed.write(block)


def read_base(path: Path) -> str:
    """The text of a base trace, gzip or not."""
    data = path.read_bytes()
    return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8")


def main() -> None:
    """Grow one trace in a process of its own: the parent's memory would count in its later children."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", type=Path)
    parser.add_argument("megabytes", type=float)
    parser.add_argument("out", type=Path, help="a name ending in .json; the same with .gz is written beside it")
    arguments = parser.parse_args()
    events = grow(read_base(arguments.base), int(arguments.megabytes * 1_000_000), arguments.out)
    compress(arguments.out, arguments.out.with_name(arguments.out.name + ".gz"))
    print(events)


if __name__ == "__main__":
    main()
