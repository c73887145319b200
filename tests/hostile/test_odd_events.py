"""Traces whose events are odd in one way: analysis ends in a report, or says what the matter is."""

import json
from datetime import date

import pytest

import profilerkit
from profilerkit.rules.api import Passed, Rule
from profilerkit.rules.runner import with_options
from tests import recipes


def test_backward_nodes_without_length_are_no_passes(tmp_path):
    trace = recipes.Trace(rank=0, world_size=2, backend="gloo")
    trace.steps(1000, 2000, 3000, 4000, 5000)
    for begun in (1000, 2000, 3000, 4000):
        trace.op(begun + 100, begun + 300, name="aten::mm")
        trace.op(begun + 400, begun + 400, name="autograd::engine::evaluate_function: MmBackward0")
        trace.gloo(begun + 500, begun + 700)
    path = tmp_path / "trace.json"
    trace.write(path)
    assert profilerkit.analyze(path).steps.count >= 3


def test_a_collective_s_name_in_a_profile_of_jax_is_a_name_like_others(tmp_path):
    def named(what, pid, tid, name):
        return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": name}}

    def spans(tid, name, start, length, **args):
        return [
            {"ph": "X", "pid": 1, "tid": tid, "ts": 10_000 * step + start, "dur": length, "name": name, "args": args}
            for step in range(1, 6)
        ]

    events = [named("process_name", 1, 0, "/device:GPU:0"), named("process_name", 701, 0, "/host:CPU")]
    events += [named("thread_name", 1, 16, "Stream #16(Kernel)"), named("thread_name", 1, 1, "Steps")]
    events += [named("thread_name", 1, 3, "XLA Ops")]
    events += spans(1, "5", 0, 9_000) + spans(3, "fusion.1", 0, 5_000) + spans(16, "gemm_kernel", 100, 4_000)
    events += spans(16, "add_kernel", 4_200, 1_000, **{"Collective name": "allreduce"})
    path = tmp_path / "perfetto_trace.json"
    path.write_text(json.dumps({"displayTimeUnit": "ns", "traceEvents": events}), "utf-8")
    assert profilerkit.analyze(path).verdict.bound


def test_an_option_of_a_kind_that_json_lacks_is_taken():
    class Since(Rule, frozen=True):
        """Say nothing."""

        code = "ZZ001"
        summary = "Nothing is said"
        since: date = date(2024, 1, 1)

        def check(self, facts):
            return Passed("nothing")

    (rule,), _ = with_options([Since()], {"ZZ001": {"since": date(2025, 1, 1)}})
    assert rule.since == date(2025, 1, 1)
    with pytest.raises(profilerkit.ProfilerkitError, match="wrong kind"):
        with_options([Since()], {"ZZ001": {"since": 5}})
