"""The tiles of the first screen: what a busy device does."""

import pytest

from profilerkit.model.change import revise
from profilerkit.model.step import Part, Rank
from profilerkit.report.tiles import tiles_of
from tests.report.samples import MS, SAMPLES


def rank(number, busy, **shares):
    parts = tuple(
        Part(
            part=name.replace("_", "."),
            family="communication",
            time_ns=round(share * 10 * MS),
            share=share,
            source="derived",
        )
        for name, share in shares.items()
    )
    return Rank(rank=number, origin="a.json", breakdown=parts, busy_ratio=busy, step_ns=10 * MS)


def busy_note(*ranks):
    report = SAMPLES["input_bound"]()
    report = revise(report, ranks=ranks, trust=revise(report.trust, mode="gpu"))
    return next(tile.note for tile in tiles_of(report) if tile.label.startswith("GPU busy"))


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({}, "of the judged steps"),
        ({"comm_skew": 0.049}, "of the judged steps"),
        ({"comm_skew": 0.4, "comm_bw": 0.1}, "of the judged steps, 40 % waiting for other ranks"),
        ({"comm_bw": 0.4}, "of the judged steps"),
        ({"comm_other": 0.3}, "of the judged steps, 30 % in collectives, waiting for other ranks included"),
    ],
)
def test_a_device_that_is_busy_waiting_says_so(shares, said):
    assert busy_note(rank(0, 0.73, **shares)) == said


def test_of_several_ranks_the_mean_is_told():
    assert busy_note(rank(0, 0.9, comm_skew=0.5), rank(1, 0.5)) == "lowest rank 50 %, 25 % waiting for other ranks"
