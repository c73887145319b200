"""CP013: dense gradients of embedding tables of which a step looks up few rows."""

import pytest

from profilerkit.analysis.device.shape_losses import DenseTables
from profilerkit.analysis.job_facts import HostFacts
from profilerkit.rules.api import Fired, MissingData, Passed
from tests.recipes import STEP_NS, Trace, replace
from tests.rules.test_compute_rules import wasting
from tests.rules.test_rules import ended, finding, on_host, timers_only

ROWS, WIDTH, BATCH = 10_000, 64, 100
TABLE, LOOKED_UP = [ROWS, WIDTH], [BATCH, WIDTH]


def training(*, rows=ROWS, device=False, extra=(), listed=2):
    """Three steps of 1,000 µs: a lookup, a dense backward pass of 100 µs that fills 60, and 300 µs over the table."""
    trace, table = Trace(), [rows, WIDTH]
    trace.steps(*range(0, 4_001, 1_000))
    calls = [
        ("aten::embedding", 10, 60, [table, [BATCH], []]),
        ("aten::mm", 100, 300, [LOOKED_UP, [WIDTH, WIDTH]]),
        ("aten::embedding_dense_backward", 400, 500, [LOOKED_UP, [BATCH], []]),
        ("aten::fill_", 420, 480, [table, []]),
        ("aten::addcdiv_", 600, 800, [table, table, table]),
        ("aten::_foreach_mul_", 800, 1_000, [[table] * listed, []]),
        *extra,
    ]
    for start in range(0, 4_000, 1_000):
        for name, begin, end, dims in calls:
            types = ["TensorList" if shape and isinstance(shape[0], list) else "float" for shape in dims]
            trace.op(start + begin, start + end, name=name, dims=dims, types=types)
            if device:  # of the backward pass before what it fills
                at, stop = (start + begin, start + begin + 1), 420 if begin == 400 else end
                trace.kernel(start + begin + 5, start + stop, name="pointwise", launch=at)
    return trace.facts()


def test_what_goes_over_the_whole_table_is_counted_on_a_processor():
    found = training().tables
    assert (found.count, found.rows, found.width, found.looked_up) == (1, ROWS, WIDTH, BATCH)
    assert found.share == pytest.approx(0.4)  # the backward pass, one tensor, and half of a list of two
    assert found.unused_share == pytest.approx(0.4 * 0.99)


def test_each_of_the_tables_of_one_shape_counts_in_an_optimizers_list():
    more = [("aten::embedding", 60 + 5 * at, 62 + 5 * at, [TABLE, [BATCH], []]) for at in range(3)]
    found = training(extra=more, listed=4).tables
    assert found.share == pytest.approx(0.5)  # the whole list is four tables
    assert (found.count, found.looked_up) == (4, BATCH)
    assert training(listed=4).tables.share == pytest.approx(0.35)  # of its four tensors one is a table


def test_kernels_over_the_whole_table_are_counted_on_a_device():
    found = training(device=True)
    assert found.tables is None
    assert found.kernel_losses.tables.looked_up == BATCH
    assert found.kernel_losses.tables.share == pytest.approx(0.4, abs=0.05)


@pytest.mark.parametrize(
    "changes",
    [{"rows": 150}, {"extra": [("aten::mm", 310, 390, [LOOKED_UP, [WIDTH, ROWS]])]}],
    ids=["most rows are looked up", "the output layer is tied to it"],
)
def test_tables_that_want_a_dense_gradient_are_left_out(changes):
    assert training(**changes).tables is None


def tables(share, **changes):
    found = DenseTables(count=2, rows=ROWS, width=WIDTH, looked_up=100.0, share=share, unused_share=0.99 * share)
    return replace(on_host(), host=HostFacts(tables=found), trace_read=True, **changes)


FIRES = {"CP013": tables(0.5)}
PASSES = {"CP013": tables(0.01)}


def test_a_dense_gradient_is_priced_and_gets_the_fix():
    found = finding("CP013", tables(0.5))
    assert (found.bound, found.saving.high) == ("memory-bound", 0.5)
    assert found.saving.expected == pytest.approx(0.9 * 0.99 * 0.5)
    assert "at most 100 of 10,000 rows" in found.why
    assert "2 tables are like this" in found.why
    assert "sparse=True" in found.fix.code
    assert ended("CP013", tables(0.01)) is Passed
    assert ended("CP013", tables(0.5, step_error_ns=0.5 * STEP_NS)) is Passed
    assert ended("CP013", wasting(tables=tables(0.5).host.tables)) is Fired
    assert ended("CP013", timers_only()) is MissingData
    assert ended("CP013", wasting()) is Passed
