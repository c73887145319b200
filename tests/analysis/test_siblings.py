"""What the ranks of one host take of its processors together."""

import pytest

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.rank_facts import rank_facts
from profilerkit.rundir.reader import read_run
from profilerkit.rundir.sampled import HostSample, Sample
from tests.recipes import Log, write_run

BUSY = (HostSample(cpu_ratio=0.5, process_cpu_cores=0.75),)


def facts_of(run, *, world_size=4, samples=BUSY, **meta):
    logs = [Log().steps(30, 1_000) for _ in range(4)]
    sampled = [Sample(t_ns=number, host=host) for number, host in enumerate(samples)]
    record = read_run(write_run(run, logs, world_size=world_size, samples=sampled, **meta))
    ranks = [rank_facts(f"rank_{number:05d}", None, rank) for number, rank in enumerate(record.ranks)]
    return Facts(ranks, world_size=world_size)


def test_the_use_of_the_other_ranks_is_added_up(tmp_path):
    facts = facts_of(tmp_path / "run")
    assert (facts.host_ranks, facts.usable_cores) == (4, 2.0)
    assert facts.series("host.sibling_cores").mean == pytest.approx(3 * 0.75)


def test_a_rank_that_was_not_read_or_not_sampled_leaves_it_unknown(tmp_path):
    assert facts_of(tmp_path / "missing", world_size=5).series("host.sibling_cores") is None
    assert facts_of(tmp_path / "unsampled", samples=()).series("host.sibling_cores") is None


def test_a_single_rank_has_no_siblings(tmp_path):
    record = read_run(write_run(tmp_path / "run", [Log().steps(30, 1_000)]))
    facts = Facts([rank_facts("rank_00000", None, record.ranks[0])], world_size=1)
    assert facts.host_ranks == 1
    assert facts.series("host.sibling_cores") is None
