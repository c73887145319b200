"""Damaged traces that were read wrongly once, and that their check can fail; ``test_mutations`` has the many."""

import pytest
import trace_mutations
from trace_mutations import TRACES, Mutation, Original, check, originals, run_seed

# Each broke a promise of the reader once.
FUZZED_SEEDS = [
    *(290, 105990, 203328, 205439, 209248, 1004930),
    *(2056192, 2057612, 2094011, 5059946, 5066907, 5081849, 5113615),
    100013951,
]


@pytest.fixture(scope="module", params=TRACES)
def original(request, tmp_path_factory):
    return Original(TRACES[request.param], tmp_path_factory.mktemp("original") / "trace.json")


@pytest.mark.parametrize("seed", FUZZED_SEEDS)
def test_seeds_that_once_failed_hold(tmp_path, seed):
    path = tmp_path / "trace.json"
    run_seed(originals(path), seed, path)


def test_check_notices_lost_and_invented_events(original, tmp_path, monkeypatch):
    """The check itself can fail: it is shown columns of other texts than the damaged one."""
    cut = len(original.text) // 2
    half = original.text[:cut]
    whole = Mutation(original.text, ["flip"], [(cut, cut + 1)])
    real = trace_mutations.read_trace
    for text, complaint in (
        (half, "lost"),
        (original.text.replace(b"41.017", b"41.018"), "invented"),
    ):
        (tmp_path / "other.json").write_bytes(text)
        monkeypatch.setattr(trace_mutations, "read_trace", lambda *_, **__: real(tmp_path / "other.json"))
        with pytest.raises(AssertionError, match=complaint):
            check(original, whole, tmp_path / "trace.json")
