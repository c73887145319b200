"""Groups of a job side by side, and what the devices and hosts of late ranks did; what is not known is not measured."""

import msgspec
import numpy as np
import pytest
from scale_benchmark.fill import template
from scale_benchmark.job import PER_STEP, STEPS, facts_of, job_of

import profilerkit
from profilerkit import api
from profilerkit.analysis.communication.log import Channel
from profilerkit.analysis.ranks.scale import condition_of, typical
from profilerkit.model import revise
from profilerkit.model.communication import Condition
from profilerkit.report import html, markdown, terminal
from profilerkit.report.communication import scale_lines, scale_tables
from profilerkit.rundir.sampled import GpuSample, HostSample, Sample
from profilerkit.summaries.files import SUFFIX, Header, write
from profilerkit.trace.columns import ProcessGroup
from profilerkit.units import format_ratio
from tests.recipes import replace

RANKS, TENSOR = 32, 4
JOB = replace(job_of(RANKS), missing=frozenset())
HOT = Condition(sm_clock_mhz=1_100.0, slowed_ratio=0.5, temperature_c=88.0, cpu_pressure_ratio=0.4)
COOL = Condition(sm_clock_mhz=1_900.0, slowed_ratio=0.0, temperature_c=55.0, cpu_pressure_ratio=0.1)


@pytest.fixture(scope="module")
def base():
    return template()


def grid(rank):
    """Tensor groups of neighbours, two stages, and copies that are every fourth rank of a stage."""
    half = RANKS // 2
    stage, place = divmod(rank, half)
    tensor = range(rank // TENSOR * TENSOR, rank // TENSOR * TENSOR + TENSOR)
    return (
        ProcessGroup("0", "default_pg", RANKS),
        ProcessGroup(f"t{tensor[0]}", "mesh_tp", TENSOR, tuple(tensor)),
        ProcessGroup(f"p{place}", "mesh_pp", 2, (place, place + half)),
        ProcessGroup(f"d{stage}.{place % TENSOR}", "mesh_dp", half // TENSOR),  # too many to be listed
    )


def reduced(base, place, *, groups=grid, condition=None, log=lambda log, _rank: log):
    ends = np.arange(1, STEPS * PER_STEP + 1, dtype=np.int64) * 7_500_000
    for rank in range(RANKS):
        facts = facts_of(JOB, base, rank, ends)
        facts = replace(facts, meta=replace(facts.meta, groups=groups(rank)), collectives=log(facts.collectives, rank))
        header = Header(
            version=profilerkit.__version__,
            origin=f"rank{rank}.json",
            trace_bytes=0,
            trace_mtime_ns=0,
            reading="",
            condition=condition(rank) if condition else None,
        )
        write(facts, place / f"rank{rank:03}{SUFFIX}", header)
    return api.reduce(place)


@pytest.fixture(scope="module")
def report(base, tmp_path_factory):
    return reduced(base, tmp_path_factory.mktemp("sides"), condition=lambda rank: HOT if rank == JOB.late else COOL)


def test_each_named_kind_has_its_groups_with_what_they_cause(report):
    found = {groups.kind: groups for groups in report.crowd.groups}
    assert {kind: groups.count for kind, groups in found.items()} == {
        "pipeline stage": 2,
        "tensor group": RANKS // TENSOR,
        "data-parallel group": 2 * TENSOR,
    }
    first = found["tensor group"].rows[0]
    assert JOB.late in first.members
    assert first.ranks == TENSOR
    assert first.late == STEPS * PER_STEP
    assert sum(row.late for row in found["tensor group"].rows) == STEPS * PER_STEP
    assert first.caused_ns == sum(row.caused_ns for row in found["pipeline stage"].rows)
    assert [row.stage for row in found["pipeline stage"].rows] == [0, 1]
    assert [row.ranks for row in found["pipeline stage"].rows] == [RANKS // 2] * 2
    assert found["data-parallel group"].rows[0].members[0] % TENSOR == JOB.late % TENSOR


def test_few_ranks_are_told_in_their_groups_too(report):
    few = revise(report, crowd=None)
    assert [heading for heading, _ in scale_tables(few)] == ["Pipeline stages", "Tensor groups", "Data-parallel groups"]
    assert next(scale_lines(few)).startswith("Not measured: expert groups and shard groups")
    bare = revise(few, communication=revise(few.communication, groups=()))
    assert [*scale_tables(bare), *scale_lines(bare)] == []


def test_a_kind_that_no_group_is_described_as_is_not_measured(report):
    said = " ".join(scale_lines(report))
    assert "Not measured: expert groups and shard groups, because no process group" in said
    headings = [heading for heading, _ in scale_tables(report)]
    assert headings == [
        *("All ranks", "Hosts", "Pipeline stages", "Tensor groups", "Data-parallel groups"),
        "Ranks that others wait for",
    ]


def test_without_descriptions_nothing_is_compared(base, tmp_path):
    report = reduced(base, tmp_path, groups=lambda _rank: (ProcessGroup("0", "default_pg", RANKS),))
    assert report.crowd.groups == ()
    assert "Not measured: pipeline stages, tensor groups, expert groups" in " ".join(scale_lines(report))


def test_a_name_that_several_groups_share_is_none(base, tmp_path):
    report = reduced(base, tmp_path, groups=lambda _rank: (ProcessGroup("tp", "tp", TENSOR),))
    assert report.crowd.groups == ()


def test_the_names_that_collectives_carry_stand_for_missing_descriptions(base, tmp_path):
    def named(log, rank):
        return replace(log, channels=(Channel(f"ep_{rank // 16}", 0),), size=np.full(len(log), 16, np.int32))

    (groups,) = reduced(base, tmp_path, groups=lambda _rank: (), log=named).crowd.groups
    assert (groups.kind, groups.count) == ("expert group", 2)
    assert groups.rows[0].ranks == 16


def test_a_rank_that_is_not_in_its_own_pipeline_has_no_stage(base, tmp_path):
    report = reduced(base, tmp_path, groups=lambda _rank: (ProcessGroup("p", "pp", 2, (98, 99)),))
    assert report.crowd.groups == ()


def test_the_late_rank_has_its_condition_beside_that_of_the_median_rank(report):
    crowd = report.crowd
    assert crowd.outliers[0].name == f"rank {JOB.late}"
    assert crowd.outliers[0].condition == HOT
    assert crowd.typical == COOL
    assert crowd.conditions == RANKS
    table = dict(scale_tables(report))["Ranks that others wait for"]
    assert table.columns == ("Rank", "SM clock", "Clock throttled", "Temperature", "CPU pressure")
    assert table.rows[0][1:] == ("1,100 MHz", format_ratio(0.5), "88.0 °C", format_ratio(0.4))
    assert table.rows[-1] == (f"Median of {RANKS} ranks", "1,900 MHz", format_ratio(0.0), "55.0 °C", format_ratio(0.1))
    assert "Not measured for any: By heat, At the power limit, Host CPU" in table.more
    assert "1,100 MHz" in html.render(report)
    assert markdown.render(report)
    assert terminal.render(report, width=80)


def test_a_condition_that_was_not_sampled_is_not_measured(base, tmp_path):
    report = reduced(base, tmp_path, condition=lambda rank: None if rank == JOB.late else COOL)
    table = dict(scale_tables(report))["Ranks that others wait for"]
    assert set(table.rows[0][1:]) == {"not measured"}
    assert report.crowd.conditions == RANKS - 1


def test_without_any_sample_it_is_said_once(base, tmp_path):
    report = reduced(base, tmp_path)
    assert report.crowd.typical is None
    assert "Ranks that others wait for" not in dict(scale_tables(report))
    assert "were not measured: traces hold no samples" in " ".join(scale_lines(report))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 1e300])
def test_a_number_that_is_none_costs_the_summary(base, tmp_path, value):
    report = reduced(base, tmp_path, condition=lambda rank: Condition(temperature_c=value) if rank == 5 else None)
    assert report.crowd.unreadable == 1
    assert report.crowd.ranks == RANKS - 1


def test_a_summary_of_an_older_kind_is_refused_and_said(base, tmp_path):
    report = reduced(base, tmp_path)
    path = tmp_path / f"rank007{SUFFIX}"
    path.write_bytes(path.read_bytes().replace(b"PKSUM2\n", b"PKSUM1\n", 1))
    report = api.reduce(tmp_path)
    assert report.crowd.unreadable == 1
    assert any("another version of profilerkit made it" in note for note in report.trust.notes)


def sample(clock, *, busy=1.0, reasons=0, **host):
    gpu = GpuSample(utilization_ratio=busy, sm_clock_mhz=clock, temperature_c=70, throttle_reasons=reasons)
    return Sample(t_ns=0, gpu=gpu, host=HostSample(**host) if host else None)


def test_a_device_is_judged_while_it_works():
    found = condition_of([sample(1_000), sample(1_200, reasons=0x40), sample(1_300), sample(200, busy=0.0)])
    assert found.sm_clock_mhz == 1_200
    assert found.slowed_ratio == found.thermal_ratio == pytest.approx(1 / 3)
    assert found.power_capped_ratio == 0.0
    assert found.host_cpu_ratio is found.cpu_pressure_ratio is None


def test_what_was_not_sampled_is_none():
    assert condition_of([]) is None
    assert condition_of([Sample(t_ns=0)]) is None
    host = [Sample(t_ns=at, host=HostSample(cpu_pressure_ratio=at / 10, running_tasks=at)) for at in range(5)]
    assert condition_of(host) == Condition(cpu_pressure_ratio=0.2, running_tasks=2.0)
    assert condition_of([Sample(t_ns=0, host=HostSample(cpu_pressure_ratio=1e300))]) is None
    assert typical([None, None]) is None
    assert typical([None, HOT, COOL]) == Condition(
        **{
            name: (value + getattr(COOL, name)) / 2
            for name, value in msgspec.structs.asdict(HOT).items()
            if value is not None
        }
    )
