"""A run that ran out of memory, in every renderer."""

import msgspec
import pytest

from profilerkit.model.oom import LiveBytes, LiveTensor, OutOfMemory
from profilerkit.report import html, json, markdown, terminal
from profilerkit.report.oom import oom_line, oom_view
from profilerkit.report.view import build
from tests.report.samples import SAMPLES

GIB = 1 << 30
OOM = OutOfMemory(
    device="cuda:0",
    message="CUDA out of memory. Tried to allocate 10.00 GiB.",
    requested_bytes=10 * GIB,
    step=7,
    live=(
        LiveBytes(kind="unseen", bytes=49 * GIB),
        LiveBytes(kind="parameters", bytes=20 * GIB, count=7),
        LiveBytes(kind="other", bytes=GIB, count=2),
        LiveBytes(kind="buffers", bytes=5, count=1),
    ),
    largest=(LiveTensor(kind="parameters", shape=(1024, 1024), dtype="float32", bytes=4 << 20),),
    free_bytes=2 * GIB,
    total_bytes=80 * GIB,
    allocated_bytes=70 * GIB,
    reserved_bytes=71 * GIB,
    limit="device",
    batch_size=32,
    fitting_batch_size=28,
    rank=0,
)


def report(name="balanced", **changes):
    return msgspec.structs.replace(SAMPLES[name](), oom=msgspec.structs.replace(OOM, **changes))


def test_one_sentence_tells_what_was_asked_for_what_there_was_and_what_may_fit():
    assert oom_line(report()) == (
        "Out of memory on cuda:0: 10.0 GiB were asked for with 2.00 GiB free of 80.0 GiB. The most was outside "
        "of all tensors that Python holds 49.0 GiB, parameters 20.0 GiB, batch, activations and temporaries 1.00 GiB. "
        "Estimated: of a batch of 32 samples at most 28 fit."
    )


def test_of_several_ranks_the_sentence_names_the_one():
    assert oom_line(report("multi_rank", rank=5)).startswith("Rank 5: out of memory on cuda:0: ")


def test_what_is_not_known_is_left_out():
    blank = msgspec.structs.replace(SAMPLES["balanced"](), oom=OutOfMemory(device="host", message="MemoryError"))
    assert oom_line(blank) == "Out of memory on the host."
    assert [fact.label for fact in oom_view(blank).facts] == ["Error", "Where", "Steps before"]
    assert (oom_view(blank).live, oom_view(blank).largest) == (None, None)
    assert oom_line(SAMPLES["balanced"]()) == ""
    assert oom_view(SAMPLES["balanced"]()).facts == ()


def test_every_size_says_how_it_came_about():
    view = oom_view(report())
    assert {row[0]: row[1] for row in view.live.rows} == {
        "outside of all tensors that Python holds": "derived",
        "parameters": "measured",
        "batch, activations and temporaries": "measured",
        "buffers": "measured",
    }
    notes = {fact.label: (fact.value, fact.note) for fact in view.facts}
    assert notes["Batch that may fit"][1].startswith("estimated")
    assert notes["Reserved and idle"][0] == "1.00 GiB"
    assert view.largest.rows == (("parameters", "float32 [1024, 1024]", "4.00 MiB"),)


@pytest.mark.parametrize(
    ("limit", "word"), [("control group", "control group"), ("address space", "address space"), ("host", "host")]
)
def test_the_tightest_limit_of_a_host_is_named(limit, word):
    facts = {fact.label: fact.note for fact in oom_view(report(device="host", limit=limit)).facts}
    assert facts["Free"] == f"the tightest limit is that of the {word}"


def test_every_renderer_shows_it():
    made = report()
    line = oom_line(made)
    assert line in build(made).limits
    assert " ".join(terminal.render(made).split()).count(line) == 1
    assert "Out of memory on cuda:0" in markdown.render(made)
    page = html.render(made, explorer=False)
    assert 'id="oom"' in page
    assert "float32 [1024, 1024]" in page
    assert 'id="oom"' not in html.render(SAMPLES["balanced"](), explorer=False)
    assert json.load(json.render(made)).oom == made.oom
