"""A summary beside its trace: made once, known again, refused where it is broken."""

from pathlib import Path

import pytest

from profilerkit.errors import UnreadableInputError
from profilerkit.formats.jobs import Reading
from profilerkit.summaries import files
from profilerkit.summaries.files import MOST_FILE_BYTES, is_fresh, open_summary, place_of, summarise_into
from tests.recipes import training

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"
PLAIN = Reading()


@pytest.fixture
def trace(tmp_path):
    return training(6, kernels=4, rank=3).write(tmp_path / "rank3.json")


@pytest.fixture
def summary(trace):
    target = place_of(trace, None)
    summarise_into(trace, target, PLAIN)
    return target


def test_it_says_what_the_trace_says(trace, summary):
    found = open_summary(summary)
    assert found.header.origin == "rank3.json"
    assert found.header.trace_bytes == trace.stat().st_size
    assert found.outline().meta.rank == 3
    details = found.details()
    assert details.totals.tolist() == found.outline().totals.tolist()
    assert [kernel.name for kernel in details.kernels]
    assert summary.stat().st_size <= MOST_FILE_BYTES


def test_it_is_known_until_the_trace_or_the_reading_changes(trace, summary):
    assert is_fresh(summary, trace, PLAIN)
    assert not is_fresh(summary, trace, Reading(device="h100-sxm"))
    assert not is_fresh(summary.with_name("none.pksum"), trace, PLAIN)
    trace.write_text(trace.read_text() + " ")
    assert not is_fresh(summary, trace, PLAIN)


def test_in_a_directory_traces_of_one_name_have_summaries_of_their_own(tmp_path):
    one, other = (place_of(tmp_path / place / "trace.json", tmp_path) for place in "ab")
    assert one.parent == other.parent == tmp_path
    assert one != other


def test_a_trace_that_cannot_be_read_leaves_nothing(tmp_path):
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    with pytest.raises(UnreadableInputError):
        summarise_into(broken, place_of(broken, None), PLAIN)
    assert [path.name for path in tmp_path.iterdir()] == ["broken.json"]


def test_a_summary_that_goes_away_is_an_error_of_ours(summary):
    known = open_summary(summary)
    summary.unlink()
    for read in (known.outline, known.details):
        with pytest.raises(UnreadableInputError, match="cannot be read"):
            read()


@pytest.mark.parametrize("left", [0.5, 0.95])
def test_a_summary_that_was_cut_off_is_refused_and_made_again(trace, summary, left):
    whole = summary.read_bytes()
    assert open_summary(summary).header.details_bytes > 0
    summary.write_bytes(whole[: int(left * len(whole))])
    with pytest.raises(UnreadableInputError, match="shorter than its header says"):
        open_summary(summary)
    assert not is_fresh(summary, trace, PLAIN)
    summarise_into(trace, summary, PLAIN)
    assert is_fresh(summary, trace, PLAIN)


def test_less_is_kept_where_there_is_less_room(trace, summary, monkeypatch):
    outline = open_summary(summary).header.outline_bytes
    monkeypatch.setattr(files, "MOST_FILE_BYTES", outline + files._HEADER_BYTES)
    summarise_into(trace, summary, PLAIN)
    found = open_summary(summary)
    assert found.header.left_out == "everything but steps and collectives"
    assert found.details().totals.tolist() == found.outline().totals.tolist()


@pytest.mark.shared_traces
@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no shared traces beside the repository, at {SHARED}")
def test_of_twenty_thousand_kernels_in_one_step_more_is_kept_than_the_step(tmp_path):
    target = tmp_path / "sam.pksum"
    summarise_into(SHARED / "sam_launch_bound" / "sam_launch_bound.json.gz", target, PLAIN)
    found = open_summary(target)
    assert target.stat().st_size <= MOST_FILE_BYTES
    assert found.header.left_out.startswith("the lanes of the median step")
    assert found.details().kernels
