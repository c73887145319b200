"""XPlane profiles, and the JSON of JAX: which events are work and steps, exact times, damage, and hostile lengths."""

import gzip
from collections import Counter
from pathlib import Path

import pytest

from profilerkit.errors import UnreadableInputError
from profilerkit.formats import limits
from profilerkit.formats.registry import read_trace
from profilerkit.formats.xla import FRAMEWORK
from profilerkit.trace.columns import Category, StepMarks
from tests.xplane_recipes import Plane, Reference, gpu, host, jax_json, number, piece, space, tpu

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces" / "jax_trace"


def read(tmp_path, content, **settings):
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(content)
    return read_trace(path, **settings)


def work(columns, *categories):
    """Name, start and duration of the events, in order of time."""
    rows = columns.is_a(*categories).nonzero()[0]
    return sorted(
        (int(columns.ts_ns[row]), int(columns.dur_ns[row]), columns.strings[columns.name[row]]) for row in rows
    )


def refused(tmp_path, content, **settings):
    with pytest.raises(UnreadableInputError) as caught:
        read(tmp_path, content, **settings)
    assert caught.value.cause
    assert caught.value.hint
    return caught.value


def test_kernels_copies_and_steps_of_a_gpu(tmp_path):
    columns = read(tmp_path, space(gpu(2), host(2)))
    assert work(columns, Category.KERNEL) == [
        (1_001_000, 4_000_000, "ampere_sgemm_128x64_tn"),
        (5_001_000, 1_000_000, "loop_add_fusion"),
        (6_001_000, 2_000_000, "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        (11_001_000, 4_000_000, "ampere_sgemm_128x64_tn"),
        (15_001_000, 1_000_000, "loop_add_fusion"),
        (16_001_000, 2_000_000, "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
    ]
    assert work(columns, Category.MEMCPY) == [(1_000, 1_000_000, "MemcpyH2D"), (10_001_000, 1_000_000, "MemcpyH2D")]
    assert work(columns, Category.STEP) == [(1_000, 10_000_000, "5"), (10_001_000, 10_000_000, "6")]
    copies = columns.is_a(Category.MEMCPY)
    assert set(columns.bytes[copies].tolist()) == {1_048_576}
    assert set(columns.stream[copies].tolist()) == {14}
    assert set(columns.stream[columns.is_a(Category.KERNEL)].tolist()) == {16}
    assert set(columns.device[~columns.is_a(Category.STEP)].tolist()) == {0}
    assert columns.meta.framework == FRAMEWORK
    assert columns.meta.step_marks == StepMarks("the profile's line of steps")
    assert columns.meta.devices[0].multiprocessors == 108
    assert columns.damage.notes == ()


def test_a_file_that_is_packed_reads_the_same(tmp_path):
    plain, packed = (read(tmp_path, content) for content in (space(gpu(), host()), gzip.compress(space(gpu(), host()))))
    for column in ("name", "category", "ts_ns", "dur_ns", "thread", "bytes"):
        assert getattr(plain, column).tolist() == getattr(packed, column).tolist()
    assert plain.strings == packed.strings


def test_start_and_end_are_cut_to_the_nanosecond_so_that_neighbours_still_meet(tmp_path):
    plane = Plane("/device:GPU:0").line("Stream #1", ("a", 1_999, 3_002), ("b", 5_001, 1_500), start_ns=10**18)
    columns = read(tmp_path, space(plane))
    base = 10**18
    assert work(columns, Category.KERNEL) == [(base + 1, 4, "a"), (base + 5, 1, "b")]


def test_without_a_line_of_steps_the_host_s_annotations_mark_them(tmp_path):
    columns = read(tmp_path, space(host(3), gpu(3, marks="")))
    assert work(columns, Category.STEP) == [
        (1_000, 10_000_000, "3"),
        (10_001_000, 10_000_000, "4"),
        (20_001_000, 10_000_000, "5"),
    ]
    assert columns.meta.step_marks == StepMarks("step annotations")


@pytest.mark.parametrize(("annotated", "by_device"), [(3, True), (4, False)])
def test_of_a_host_that_runs_ahead_the_module_that_runs_once_a_step_marks_the_steps(tmp_path, annotated, by_device):
    columns = read(tmp_path, space(host(annotated, step_ps=1_000_000_000), tpu(3)))
    starts = [start for start, _, _ in work(columns, Category.STEP)]
    assert (starts == [0, 10_000_000, 20_000_000]) == by_device


def test_without_any_marks_runs_of_the_largest_module_stand_for_steps(tmp_path):
    columns = read(tmp_path, space(tpu(3)))
    assert [start for start, _, _ in work(columns, Category.STEP)] == [0, 10_000_000, 20_000_000]
    assert columns.meta.step_marks is not None
    assert columns.meta.step_marks.inferred


@pytest.mark.parametrize(("runs", "others_ps", "found"), [(2, 1_000, 2), (1, 1_000, 0), (2, 20_000, 2), (3, 31_000, 0)])
def test_a_module_stands_for_steps_only_where_it_repeats_and_takes_most(tmp_path, runs, others_ps, found):
    modules = [("jit_step", 100_000 * run, 10_000) for run in range(runs)]
    plane = Plane("/device:TPU:0").line("XLA Modules", *modules, ("jit_other", 500_000, others_ps))
    plane.line("XLA Ops", ("fusion", 0, 10_000))
    columns = read(tmp_path, space(plane))
    assert len(work(columns, Category.STEP)) == found
    assert (columns.meta.step_marks is None) == (found == 0)


def test_operations_of_a_tpu_without_those_that_hold_others(tmp_path):
    columns = read(tmp_path, space(tpu(1)))
    assert work(columns, Category.KERNEL) == [
        (0, 3_000_000, "fusion.1"),
        (3_000_000, 2_000_000, "fusion.2"),
        (6_000_000, 2_000_000, "all-reduce.7"),
    ]
    assert work(columns, Category.MEMCPY) == [
        (5_000_000, 1_000_000, "copy-done.1"),
        (8_000_000, 1_000_000, "infeed.1 (HtoD)"),
    ]
    assert columns.meta.devices[0].name == "TPU v4"
    assert columns.damage.notes == (
        "what the TPU moves beside its operations counts only while an operation waits for it",
    )


def test_operations_that_only_touch_hold_nothing(tmp_path):
    plane = Plane("/device:TPU:0").line("XLA Ops", ("a", 0, 2_000), ("b", 2_000, 1_000), ("c", 3_000, 1_000))
    assert [text for _, _, text in work(read(tmp_path, space(plane)), Category.KERNEL)] == ["a", "b", "c"]


def test_a_gpu_s_line_of_operations_repeats_its_streams_and_is_left_out(tmp_path):
    plane = gpu(1).line("XLA Ops", ("fusion.1", 0, 9_000_000_000)).line("Source code", ("x", 0, 9_000_000_000))
    assert len(work(read(tmp_path, space(plane)), Category.KERNEL)) == 3


def test_only_the_device_that_worked_most_is_judged_and_the_others_are_told(tmp_path):
    idle = Plane("/device:GPU:7").line("Steps", ("1", 0, 10**13))
    planes = (gpu(3, busy_ps=4_000_000_000), gpu(3, device=1), gpu(3, busy_ps=400_000_000, device=2), idle)
    columns = read(tmp_path, space(*planes))
    assert set(columns.device[~columns.is_a(Category.STEP)].tolist()) == {1}
    assert columns.damage.notes == (
        "only GPU:1, which worked most, is judged; 2 other devices that worked were left out",
    )
    assert len(work(columns, Category.STEP)) == 3


def test_how_much_a_copy_moves_may_be_the_name_of_a_stat(tmp_path):
    def moved(value):
        plane = Plane("/device:GPU:0").line("Stream #1", ("MemcpyD2H", 0, 5_000, {"memcpy_details": value}))
        return read(tmp_path, space(plane)).bytes.tolist()

    assert moved(Reference("kind:pageable size:77 dest:0")) == [77]
    assert moved("kind:pageable") == [-1]
    assert moved(5) == [-1]
    assert moved("size:99999999999999999999999") == [-1]


@pytest.mark.parametrize(
    "content",
    [space(host()), space(Plane("/device:GPU:0")), space(Plane("/device:GPU:0").line("Stream #1", ("a", 5, 0)))],
    ids=["host alone", "no line", "no time"],
)
def test_a_profile_without_work_of_a_device_is_refused_with_the_reason(tmp_path, content):
    assert "no device work" in refused(tmp_path, content).what


@pytest.mark.parametrize(
    "content", [b"\n", b"\n\0", b"\n\x05\x12\x03abc", piece(1, piece(2, "/device")), b"\x12\x02ok"]
)
def test_what_only_begins_like_a_profile_is_of_no_known_format(tmp_path, content):
    assert "not a trace of a known format" in refused(tmp_path, content).what


def test_a_file_that_ends_early_is_read_up_to_its_end(tmp_path):
    """Names stand behind the lines of a plane: of the one that the file breaks off in, the work is lost with them."""
    whole, second = gpu(4), gpu(8, device=1)
    content = space(whole) + piece(1, second.bytes())
    columns = read(tmp_path, content[: -len(second.bytes()) // 2])
    assert columns.damage.truncated
    assert set(columns.device[~columns.is_a(Category.STEP)].tolist()) == {0}
    assert len(work(columns, Category.KERNEL)) == 12
    assert any("ends early" in note for note in columns.damage.notes)
    assert columns.damage.dropped > 0
    error = refused(tmp_path, content[: -len(second.bytes()) // 2], strict=True)
    assert error.hint.startswith("read it without --strict")


def test_a_damaged_event_costs_only_itself(tmp_path):
    plane = Plane("/device:GPU:0")
    good = [piece(4, plane.event("k", 10_000 * index, 5_000)) for index in range(10)]
    broken = piece(4, piece(1, 1) + b"\x10\xff\xff")
    columns = read(tmp_path, space(plane.line_of("Stream #1", *good[:5], broken, *good[5:])))
    assert len(columns) == 10
    assert columns.damage.dropped == 1
    assert columns.damage.notes == ("1 events were damaged and dropped",)
    refused(tmp_path, space(plane), strict=True)


@pytest.mark.parametrize(
    ("start_ns", "offset_ps", "duration_ps"),
    [(2**63 - 1, 0, 5_000), (0, 0, -1), (-(2**63), 0, 9_000)],
)
def test_a_time_that_no_clock_can_show_costs_its_event(tmp_path, start_ns, offset_ps, duration_ps):
    plane = Plane("/device:GPU:0").line("Stream #1", ("good", 0, 5_000))
    plane.line("Stream #2", ("bad", offset_ps, duration_ps), start_ns=start_ns)
    columns = read(tmp_path, space(plane))
    assert work(columns, Category.KERNEL) == [(0, 5, "good")]
    assert columns.damage.dropped == 1


def test_events_that_stand_for_several_and_those_without_a_name_are_told(tmp_path):
    plane = Plane("/device:GPU:0")
    kept = piece(4, plane.event("k", 0, 5_000))
    several = piece(4, piece(1, 1) + piece(3, 9_000) + piece(5, 12))
    nameless = piece(4, piece(1, 99) + piece(2, 0) + piece(3, 5_000))
    columns = read(tmp_path, space(plane.line_of("Stream #1", kept, several, nameless)))
    assert len(columns) == 1
    assert columns.damage.dropped == 1
    assert columns.damage.notes == (
        "1 events without a name were dropped",
        "1 events that stand for several have no time of their own and were left out",
    )


def test_more_events_lines_or_names_than_any_profile_has_are_not_read(tmp_path, monkeypatch):
    content = space(gpu(20))
    monkeypatch.setattr(limits, "XPLANE_EVENTS", 31)
    columns = read(tmp_path, content)
    assert columns.damage.truncated
    assert len(columns) == 30
    monkeypatch.undo()
    monkeypatch.setattr(limits, "XPLANE_LINES", 1)
    with pytest.raises(UnreadableInputError):
        read(tmp_path, content)


LONG = number(2**63)


@pytest.mark.parametrize(
    "inside",
    [b"\x1a" + LONG, b"\x1a" + b"\xff" * 40, b"\x03" * 500, b"\x00" * 500, b"\x1a\x02\x22\x7f" * 300, b"\x1a" * 5_000],
    ids=["length", "endless", "groups", "no field", "inner length", "nested"],
)
def test_hostile_lengths_are_never_believed(tmp_path, inside):
    head = piece(2, "/device:GPU:0")
    refused(tmp_path, piece(1, head + inside))
    refused(tmp_path, piece(1, head + inside), strict=True)
    good = gpu(2).bytes()
    columns = read(tmp_path, piece(1, head + inside) + piece(1, good))
    assert len(work(columns, Category.KERNEL)) == 6


@pytest.mark.parametrize("unit", [b"\x1a\x00", b"\x22\x00", b"\x2a\x00", b"\x1a\x02\x22\x00", b"\x32\x00"])
def test_many_empty_parts_are_passed(tmp_path, unit):
    refused(tmp_path, b"\n" + number(13 + 2 + 2**19 * len(unit)) + piece(2, "/device:GPU:0") + unit * 2**19)


def unpacked_to(size, unit=b"\x78\x01"):
    """A profile and a plane full of fields that nobody knows, packed: a small file and a large profile."""
    plane = piece(2, "/device:GPU:0") + unit * (size // len(unit))
    return gzip.compress(piece(1, gpu(4).bytes()) + piece(1, plane))


def test_a_packed_file_cannot_ask_for_more_fields_than_its_size_allows(tmp_path, monkeypatch):
    content = unpacked_to(2_000_000)
    assert len(content) < 10_000
    monkeypatch.setattr(limits, "FREE_FIELDS", 10_000)
    columns = read(tmp_path, content)
    assert len(work(columns, Category.KERNEL)) == 12
    assert columns.damage.truncated
    assert columns.damage.notes == (
        "it has more fields than a file of its size is read for, and the rest was left out",
    )
    assert "more fields" in refused(tmp_path, content, strict=True).cause


def test_a_plain_file_has_never_too_many_fields(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "FREE_FIELDS", 0)
    content = gzip.decompress(unpacked_to(2_000_000))
    assert read(tmp_path, content, strict=True).damage.notes == ()


def test_a_packed_file_is_not_unpacked_without_end(tmp_path, monkeypatch):
    content = unpacked_to(2_000_000, unit=b"\x7a\xff\x7f" + bytes(16383))
    monkeypatch.setattr(limits, "FREE_MESSAGE_BYTES", 500_000)
    columns = read(tmp_path, content)
    assert len(work(columns, Category.KERNEL)) == 12
    assert columns.damage.truncated
    assert columns.damage.notes[0].startswith("only the first ")


def test_names_are_text_whatever_they_hold(tmp_path):
    plane = Plane("/device:GPU:0").line("Stream #1", (b"\xff\xfe<script>\0".decode("latin-1"), 0, 5_000))
    plane.events = {b"\xff\xfe<script>\0": 1}
    columns = read(tmp_path, space(plane))
    assert [text for _, _, text in work(columns, Category.KERNEL)] == ["\ufffd\ufffd<script>\0"]


@pytest.mark.parametrize("packed", [False, True])
def test_json_of_jax_is_told_by_its_processes_and_threads(tmp_path, packed):
    (tmp_path / "host.trace.json").write_bytes(jax_json(2, packed=packed))
    columns = read_trace(tmp_path / "host.trace.json", strict=True)
    assert work(columns, Category.KERNEL) == [
        (2_000_250, 5_000_500, "ampere_sgemm_128x64_tn"),
        (7_001_000, 1_999_000, "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        (12_000_250, 5_000_500, "ampere_sgemm_128x64_tn"),
        (17_001_000, 1_999_000, "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
    ]
    assert work(columns, Category.MEMCPY) == [(1_000_000, 1_000_000, "MemcpyH2D"), (11_000_000, 1_000_000, "MemcpyH2D")]
    assert work(columns, Category.STEP) == [(1_000_000, 10_000_000, "5"), (11_000_000, 10_000_000, "6")]
    assert columns.meta.framework == FRAMEWORK
    assert columns.damage.dropped == 0


def test_json_of_jax_without_a_device_is_refused(tmp_path):
    (tmp_path / "host.trace.json").write_bytes(jax_json(2, device="/host:python-tracer"))
    with pytest.raises(UnreadableInputError, match="no device work"):
        read_trace(tmp_path / "host.trace.json")


def test_a_torch_trace_whose_process_has_a_device_s_name_stays_one(tmp_path):
    events = (
        '{"ph":"M","name":"process_name","pid":7,"args":{"name":"/device:GPU:0"}},'
        '{"ph":"X","cat":"kernel","name":"k","pid":7,"tid":1,"ts":1,"dur":2,"args":{"device":0}}'
    )
    (tmp_path / "trace.json").write_text(f'{{"traceEvents": [{events}]}}')
    columns = read_trace(tmp_path / "trace.json")
    assert columns.meta.framework is None
    assert work(columns, Category.KERNEL) == [(1_000, 2_000, "k")]


@pytest.mark.shared_traces
@pytest.mark.skipif(not SHARED.exists(), reason=f"no shared traces beside the repository, at {SHARED}")
class TestReal:
    def test_an_amd_gpu_has_kernels_and_no_steps(self):
        columns = read_trace(SHARED / "934987a2fc2f.pb", strict=True)
        names = Counter(columns.strings[name] for name in columns.name[columns.is_a(Category.KERNEL)])
        assert names["gemm_fusion_dot.kd"] > 0
        assert columns.meta.step_marks is None
        assert set(columns.device.tolist()) == {0}
        assert columns.damage.notes == ()

    def test_a_tpu_host_has_operations_and_runs_of_its_module(self):
        columns = read_trace(SHARED / "_v2_2cc1243__tpu_inference_2.pb", strict=True)
        assert columns.meta.devices[0].name == "TPU v6 Lite"
        assert len(columns.meta.devices) == 4
        assert columns.is_a(Category.MEMCPY).any()
        assert any("3 other devices that worked were left out" in note for note in columns.damage.notes)
