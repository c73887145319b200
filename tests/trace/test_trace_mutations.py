"""A thousand damaged texts: no crash, no hang, no event invented, every loss counted."""

import random

import pytest
from trace_mutations import TRACES, Original, check, mutated

from profilerkit.trace import blocks

# Found by scripts/fuzz_reader; each was mended.
FUZZED_SEEDS = []


@pytest.fixture(scope="module", params=TRACES)
def original(request, tmp_path_factory):
    return Original(TRACES[request.param], tmp_path_factory.mktemp("original") / "trace.json")


@pytest.mark.parametrize("block", range(20))
def test_mutated_trace_is_read_but_for_the_damage(original, tmp_path, monkeypatch, block):
    for seed in range(block * 17, block * 17 + 17):
        rng = random.Random(seed)
        monkeypatch.setattr(blocks, "BLOCK_BYTES", rng.choice([512, 4 * 1024, 256 * 1024]))
        mutation = mutated(original.text, rng, rng.choice([1, 1, 1, 3]))
        try:
            check(original, mutation, tmp_path / "trace.json")
        except Exception as error:
            raise AssertionError(f"seed {seed}, {mutation.kinds} at {mutation.touched}") from error
