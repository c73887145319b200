"""What is done to the bytes of logs and dumps to see that they are read or refused, and nothing in them runs."""

import os
from contextlib import contextmanager

from profilerkit.errors import ProfilerkitError


class Hostile:
    """Runs a command when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def damaged(data, rng, tokens, codes):
    """The bytes with one to six changes; ``tokens`` and ``codes`` are what a reader of theirs may stumble over."""
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 6])):
        start = rng.randrange(len(data) + 1)
        end = min(len(data), start + rng.choice([1, 1, 4, 40, 400]))
        change = rng.randrange(7)
        if change == 0:
            data[start:end] = rng.randbytes(end - start)
        elif change == 1:
            del data[start:end]
        elif change == 2:
            data[start:start] = data[start:end] * rng.choice([1, 3, 100])
        elif change == 3:
            del data[start:]
        elif change == 4:
            data[start:end] = rng.choice(tokens)
        elif change == 5:
            data[start:start] = rng.choice([b"cos\nsystem\n", b"r\xff\xff\xff\x7f", b"\x8e" + b"\xff" * 8, b"R"])
        else:
            data[start:end] = bytes(rng.choices(codes, k=end - start))
    return bytes(data)


@contextmanager
def refused():
    """Whatever is raised but an error of ours with its parts breaks a promise."""
    try:
        yield
    except ProfilerkitError as error:
        if not (error.what and (error.cause or error.hint)):
            raise AssertionError(f"an error without a part: {error!r}") from error


def check_report(report):
    """No rule broke, and the report can be shown."""
    broken = [outcome for outcome in report.outcomes if outcome.status == "error"]
    assert not broken, broken
    report.to_json()
    report.to_markdown()
