import msgspec
import pytest

from profilerkit.model.memory import OutOfMemory
from profilerkit.rundir import ending as finding
from profilerkit.rundir.ending import ending_of
from profilerkit.rundir.layout import END, META, OOM, RankEnd, rank_directory
from profilerkit.rundir.reader import read_run
from profilerkit.rundir.sampled import HostSample, Sample
from tests.recipes import MS, Log, S, rank_meta, write_run

STEP_US = 100_000


def run_of(path, ends, steps=10):
    """A run whose ranks ended as given: ``finished``, ``None`` for a kill, or (seconds, exception, steps)."""
    run = write_run(path, [Log().steps(steps, STEP_US) for _ in ends])
    for rank, end in enumerate(ends):
        place = rank_directory(run, rank) / END
        if end is None:
            place.unlink()
        elif end != "finished":
            at_s, exception, count = end
            told = RankEnd(
                reason="exception", exception=exception, steps=count, dropped_records=0, end_perf_ns=round(at_s * S)
            )
            place.write_bytes(msgspec.json.encode(told))
    return read_run(run)


@pytest.mark.parametrize(
    ("ends", "word", "failure"),
    [
        (["finished", "finished"], "finished", None),
        ([(1.0, "KeyError: 'x'", 10)], "KeyError: 'x'", "The run failed after 10 steps: KeyError: 'x'"),
        (
            [(2.5, "RuntimeError: closed by peer", 10), (1.5, "ValueError: own", 1)],
            "ValueError: own (rank 1)",
            "Rank 1 failed first, after 1 step and 1.00 s before rank 0: ValueError: own",
        ),
        (
            ["finished", (0.5, "ValueError: own", 0)],
            "ValueError: own (rank 1)",
            "Rank 1 failed before its first step ended: ValueError: own",
        ),
        (
            [None],
            "killed, or still running",
            "The run left no word of its end: it was killed, or still runs. "
            "Its last record is of 2027-01-15 08:00:01 UTC, after 10 steps.",
        ),
        (
            [(1.5, "RuntimeError: closed by peer", 10), None],
            "RuntimeError: closed by peer (rank 0)",
            "Rank 1 left no word of its end: killed, or still running. "
            "Rank 0 failed after 10 steps: RuntimeError: closed by peer",
        ),
    ],
)
def test_the_first_failure_is_told_and_not_what_it_did_to_the_others(tmp_path, ends, word, failure):
    ending = ending_of(run_of(tmp_path, ends))
    assert (ending.word, ending.failure) == (word, failure)


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        ("KeyError: 'input_ids'", "KeyError in DataLoader worker process 1: KeyError: 'input_ids'"),
        ("net.OwnError: two\nlines", "OwnError in DataLoader worker process 1: net.OwnError: two"),
        (
            "net.f.<locals>.BadRowError: row 7",
            "BadRowError in DataLoader worker process 1: net.f.<locals>.BadRowError: row 7",
        ),
        (
            "ValueError: first\nValueError is what this is about\n  indented\nlast",
            "ValueError in DataLoader worker process 1: ValueError: first",
        ),
        (
            'KeyError: 1\n\nDuring handling another happened:\n\nTraceback:\n  File "b.py", line 2\nOSError: two\nnote',
            "OSError in DataLoader worker process 1: OSError: two",
        ),
        (None, "KeyError in DataLoader worker process 1"),
    ],
)
def test_of_an_exception_in_a_worker_its_place_and_what_it_said_first_are_told(tmp_path, raised, told):
    kind = told.partition(" ")[0]
    name = raised.partition(":")[0] if raised and "<locals>" in raised else kind
    said = f"{name}: Caught {kind} in DataLoader worker process 1.\nOriginal Traceback (most recent call last):\n"
    said += '  File "worker.py", line 374, in _worker_loop\n    data = fetcher.fetch(index)\n           ^^^^^^^\n'
    ending = ending_of(run_of(tmp_path, [(1.0, said + (raised or ""), 10)]))
    assert (ending.word, ending.failure) == (told, f"The run failed after 10 steps: {told}")


KILLED = "left no word of their end: killed, or still running."
ENDS_FIRST = "The records of rank 1 end first"


def killed(path, *steps, samples=()):
    """What is said of ranks that were killed after so many steps."""
    run = write_run(path, [Log().steps(count, STEP_US) for count in steps], ended=False, samples=samples)
    return ending_of(read_run(run)).failure


def test_of_ranks_that_were_killed_the_one_whose_records_end_first_is_named(tmp_path):
    assert killed(tmp_path, 10, 3) == f"Ranks 0 and 1 {KILLED} {ENDS_FIRST}, 700 ms before those of rank 0."


@pytest.mark.parametrize(("steps", "told"), [(4, False), (3, True)])
def test_records_end_first_by_more_than_a_step_and_a_flush(tmp_path, steps, told):
    assert (ENDS_FIRST in killed(tmp_path, 10, steps)) is told


def test_where_samples_are_taken_records_end_first_by_a_second_more(tmp_path):
    assert ENDS_FIRST not in killed(tmp_path, 10, 1, samples=[Sample(t_ns=50 * MS)])


@pytest.mark.parametrize(("at_s", "told"), [(0.8, False), (2.0, True)])
def test_an_exception_elsewhere_at_that_time_may_be_what_stopped_the_rank(tmp_path, at_s, told):
    run = write_run(tmp_path, [Log().steps(20, STEP_US), Log().steps(5, STEP_US)], ended=False)
    end = RankEnd(reason="exception", exception="ValueError: own", steps=20, dropped_records=0, end_perf_ns=0)
    place = rank_directory(run, 0) / END
    place.write_bytes(msgspec.json.encode(msgspec.structs.replace(end, end_perf_ns=round(at_s * S))))
    assert (ENDS_FIRST in ending_of(read_run(run)).failure) is told


def test_across_hosts_a_failure_is_the_first_only_beyond_the_error_of_their_clocks(tmp_path):
    def ended(after_ms, host):
        at_s = 2.0 + after_ms / 1e3
        run = run_of(tmp_path, [(2.0, "ValueError: own", 10), (at_s, "RuntimeError: closed by peer", 9)])
        (rank_directory(run.path, 1) / META).write_bytes(msgspec.json.encode(rank_meta(1, host=host)))
        return ending_of(read_run(tmp_path))

    close = ended(100, "node1")
    assert close.word == "ValueError: own (rank 0); RuntimeError: closed by peer (rank 1)"
    assert close.failure == (
        "2 hosts' ranks failed within 100 ms of each other, too close to tell which was first by the hosts' clocks: "
        "rank 0 after 10 steps: ValueError: own; rank 1 after 9 steps: RuntimeError: closed by peer"
    )
    told = "Rank 0 failed first, after 10 steps and {} before rank 1: ValueError: own"
    assert ended(101, "node1").failure == told.format("101 ms")
    assert ended(1, "node0").failure == told.format("1.00 ms")


@pytest.mark.parametrize(("host", "told"), [("node0", True), ("node1", False)])
def test_the_clocks_of_two_hosts_may_make_records_end_first(tmp_path, host, told):
    run = write_run(tmp_path, [Log().steps(10, STEP_US), Log().steps(3, STEP_US)], ended=False)
    (rank_directory(run, 1) / META).write_bytes(msgspec.json.encode(rank_meta(1, host=host)))
    assert (ENDS_FIRST in ending_of(read_run(run)).failure) is told


def test_a_failure_without_a_clock_is_not_called_the_first(tmp_path):
    run = run_of(tmp_path, [(2.0, "RuntimeError: one", 10), (1.0, "RuntimeError: other", 10)])
    for entry in run.ranks:
        (entry.path / "meta.json").unlink()
    assert ending_of(read_run(tmp_path)).failure == "Rank 0 failed after 10 steps: RuntimeError: one"


def test_a_run_that_nobody_left_anything_of_has_no_ending(tmp_path):
    run = run_of(tmp_path, ["finished"])
    assert ending_of(msgspec.structs.replace(run, ranks=())) is None


def end_with(run, rank, **fields):
    told = RankEnd(reason="exit", exception=None, steps=10, dropped_records=0, end_perf_ns=2 * S)
    (rank_directory(run.path, rank) / END).write_bytes(msgspec.json.encode(msgspec.structs.replace(told, **fields)))
    return ending_of(read_run(run.path))


def test_an_exit_is_a_failure_by_its_code(tmp_path):
    run = run_of(tmp_path, ["finished"])
    ending = end_with(run, 0, left_by="sys.exit(3)", exit_code=3)
    assert (ending.word, ending.kind, ending.raised) == ("sys.exit(3)", "failed", True)
    assert ending.failure == "The run ended after 10 steps: sys.exit(3)"
    ending = end_with(run, 0, left_by="os._exit(0)", exit_code=0)
    assert (ending.word, ending.kind, ending.failure, ending.raised) == ("os._exit(0)", "finished", None, False)


def test_an_interruption_is_told_in_words(tmp_path):
    ending = end_with(run_of(tmp_path, ["finished"]), 0, reason="interrupted", exception="KeyboardInterrupt")
    assert (ending.word, ending.kind) == ("interrupted (Ctrl-C)", "interrupted")
    assert ending.failure == "The run ended after 10 steps: interrupted (Ctrl-C)"


def test_what_the_disk_refused_is_told_of_a_run_that_came_to_its_end(tmp_path):
    why = "events.bin: No space left on device"
    ending = end_with(run_of(tmp_path, ["finished"]), 0, reason="finished", stopped_because=why, dropped_records=1234)
    assert ending.word == "finished"
    assert ending.failure == f"The recording stopped before its end, 1,234 records are lost: {why}."


@pytest.mark.parametrize(
    ("full", "word", "failure"),
    [
        ([0], "killed, or still running", "Rank 0 recorded nothing: {0} Rank 1 left no word of its end: {1}"),
        ([0, 1], "not recorded", "Ranks 0 and 1 recorded nothing: {0}"),
    ],
)
def test_a_rank_whose_disk_took_nothing_is_not_called_killed(tmp_path, full, word, failure):
    run_of(tmp_path, [None, None], steps=0)
    for rank in full:
        place = rank_directory(tmp_path, rank) / META
        place.rename(place.with_name("meta.json.part")).write_bytes(b"")
    ending = ending_of(read_run(tmp_path))
    said = failure.format("the disk took nothing: it was full, or the host went down.", "killed, or still running.")
    assert (ending.word, ending.failure, ending.refused) == (word, said, len(full) == 2)
    assert ending.kind == ("refused" if len(full) == 2 else "unknown")


@pytest.fixture
def runs(monkeypatch):
    """Says which ranks still run: rank to whether, ``None`` where nobody can tell."""

    def says(**of):
        states = {int(rank.removeprefix("rank")): state for rank, state in of.items()}
        monkeypatch.setattr(finding, "still_runs", lambda meta: states[meta.rank])

    return says


def test_a_rank_that_runs_is_told_from_one_that_was_killed(tmp_path, runs):
    run = run_of(tmp_path, [None, None, None])
    runs(rank0=True, rank1=False, rank2=None)
    ending = ending_of(run)
    assert (ending.word, ending.kind) == ("killed", "killed")
    assert ending.failure == (
        "Rank 1 left no word of its end: killed. Rank 2 left no word of its end: killed, or still running. "
        "Rank 0 still runs."
    )
    runs(rank0=True, rank1=True, rank2=True)
    assert (ending_of(run).word, ending_of(run).kind) == ("still running", "running")
    assert ending_of(run).failure == "Ranks 0, 1 and 2 still run."


def test_a_killed_rank_is_named_beside_the_failure_that_it_caused(tmp_path, runs):
    runs(rank1=False)
    ending = ending_of(run_of(tmp_path, [(1.5, "RuntimeError: closed by peer", 10), None]))
    assert ending.word == "RuntimeError: closed by peer (rank 0); rank 1 killed"


def full(path, ratio, at_ms=900):
    host = HostSample(memory_used_bytes=round(ratio * 1000), memory_total_bytes=1000)
    return killed(path, 10, samples=[Sample(t_ns=at_ms * MS, host=host)])


def test_a_full_memory_at_the_end_is_likely_what_killed_it(tmp_path):
    told = "The host's memory was 98 % full in its last sample: likely the out-of-memory killer."
    assert full(tmp_path / "full", 0.98).endswith(told)
    assert "likely" not in full(tmp_path / "not full", 0.94)
    assert "likely" not in full(tmp_path / "long before", 0.98, at_ms=-12_000)


def test_a_kill_for_want_of_memory_is_likely_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(finding, "oom_kills_since", lambda _meta: 1)
    assert "likely" not in killed(tmp_path / "long ago", 10)
    monkeypatch.setattr(finding, "_SOON_NS", 1 << 62)
    assert killed(tmp_path, 10).endswith(
        "The kernel has killed a process in its control group for want of memory since the recording began: likely "
        "this one."
    )


def test_a_time_that_cannot_be_is_not_shown(tmp_path):
    run = run_of(tmp_path, [None])
    (rank_directory(run.path, 0) / META).write_bytes(msgspec.json.encode(rank_meta(anchor_unix_ns=1 << 62)))
    assert "Its last record" not in ending_of(read_run(tmp_path)).failure


def test_the_first_dossier_is_the_runs(tmp_path):
    run = run_of(tmp_path, [(2.5, "MemoryError", 10), (1.5, "MemoryError", 10)])
    for rank in (0, 1):
        place = rank_directory(run.path, rank) / OOM
        place.write_bytes(msgspec.json.encode(OutOfMemory(device="host", message=f"of {rank}")))
    assert (finding.dossier_of(read_run(tmp_path)).rank, finding.dossier_of(run)) == (1, None)
