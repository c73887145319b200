"""What a pickle may hold is bounded by its size: floods of each instruction, in a process that is given no more."""

import subprocess
import sys

import pytest

# The process may take what the module says, and the half more that a growing dict takes; Python itself rounds up by
# some MB.
FLOODED = """
import pickle, resource, sys
from profilerkit.formats.plain_pickle import FREE_HELD_BYTES, HELD_PER_BYTE, NotPlainError, plain_data

data = b"\\x80\\x04" + eval(sys.argv[1])
own = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
most = own + (FREE_HELD_BYTES + HELD_PER_BYTE * len(data)) * 3 // 2 + (4 << 20)
resource.setrlimit(resource.RLIMIT_AS, (most, most))
try:
    if sys.argv[2] == "python":
        pickle.loads(data)
    else:
        plain_data(data)
except NotPlainError as error:
    print("refused:", error)
except MemoryError:
    print("out of memory")
else:
    print("read")
"""
FLOODS = {
    "nothing": "b'N' * 1_000_000 + b'.'",
    "small numbers": "b'M\\xff\\xff' * 400_000 + b'.'",
    "long numbers": "(b'\\x8a\\xff' + b'\\x7f' * 255) * 4_000 + b'.'",
    "fractions": "(b'G' + b'\\x40' * 8) * 200_000 + b'.'",
    "texts": "b'\\x8c\\x02\\xc3\\xa9' * 300_000 + b'.'",
    "a wide text": "b'X\\x00\\x00\\x20\\x00' + b'a' * (0x200000 - 4) + b'\\xf0\\x9f\\x98\\x80.'",
    "a text that is too long": "b'X\\x00\\x00\\x50\\x00' + b'a' * 0x500000 + b'.'",
    "lists": "b']' * 1_000_000 + b'.'",
    "dicts": "b'}' * 1_000_000 + b'.'",
    "dicts of one key": "b'}K\\x01Ns' * 300_000 + b'.'",
    "a dict of many keys": "b'}(' + b''.join(b'J' + n.to_bytes(4, 'little') + b'N' for n in range(200_000)) + b'u.'",
    "nested tuples": "b'K\\x01' + b'\\x85' * 1_000_000 + b'.'",
    "nested lists": "b']' * 400_000 + b'a' * 399_999 + b'.'",
    "marks": "b'(' * 1_000_000 + b'.'",
    "places in the memo": "b'K\\x01' + b'\\x94' * 1_000_000 + b'.'",
    "numbered places": "b'K\\x01' + b''.join(b'r' + n.to_bytes(4, 'little') for n in range(300_000)) + b'.'",
    "one list again and again": "b']\\x94(' + b'h\\x00' * 500_000 + b'e.'",
    "a list of itself": "b']\\x94' + b'h\\x00h\\x00a' * 200_000 + b'.'",
    "appends to one list": "b']\\x94' + b'(h\\x00h\\x00h\\x00e' * 100_000 + b'.'",
    "frames": "(b'\\x95' + b'\\xff' * 8) * 100_000 + b'N.'",
    "a number of 2 GB": "b'\\x8b\\xff\\xff\\xff\\x7f' + b'x' * 1_000_000 + b'.'",
    "copies of the last": "b']' + b'2' * 1_000_000 + b'.'",
    "what is dropped": "b']0' * 500_000 + b'N.'",
}


def flooded(name, by="us"):
    command = [sys.executable, "-c", FLOODED, FLOODS[name], by]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    return done.stdout.strip()


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is limited, and seen, as on Linux")
@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_is_read_or_refused_within_the_stated_memory(name):
    assert flooded(name).startswith(("read", "refused"))


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is limited, and seen, as on Linux")
def test_the_limit_of_memory_is_one():
    """Python's own unpickler passes it on one of these floods, so that it can be passed."""
    assert flooded("lists", by="python") == "out of memory"
