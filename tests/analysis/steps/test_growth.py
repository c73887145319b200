"""Steps that grow, steps that take longer from one step on, and the stage of the loop that does."""

import doctest

import numpy as np
import pytest

from profilerkit.analysis.host.lines import growing_line
from profilerkit.analysis.steps import trend
from profilerkit.analysis.steps.log import log_of
from profilerkit.analysis.steps.table import log_series
from profilerkit.analysis.steps.trend import step_growth
from profilerkit.model import revise
from profilerkit.rundir.layout import EventKind
from profilerkit.rundir.sampled import StackSample
from tests.analysis.steps.test_stalls import series
from tests.recipes import US, Log, rank_record

DRAWS = 40


def grown(shape, *, count=300, noise=0.05, seed=0):
    """The growth of steps of 10 ms times ``shape`` of 0 to 1, with lognormal noise."""
    random = np.random.default_rng(seed)
    time = 1e7 * shape(np.linspace(0.0, 1.0, count)) * np.exp(noise * random.standard_normal(count))
    return step_growth(series(time))


def told(shape, **fields):
    """Of all draws how many are trend, and how many a jump."""
    found = [grown(shape, seed=seed, **fields) for seed in range(DRAWS)]
    found = [one for one in found if one is not None and one.ratio >= 1.2]
    return sum(one.jump is None for one in found), sum(one.jump is not None for one in found)


def test_the_example_in_the_docstring_holds():
    assert doctest.testmod(trend).failed == 0


@pytest.mark.parametrize("noise", [0.05, 0.15])
@pytest.mark.parametrize("at", [0.3, 0.5, 0.52, 0.55, 0.6, 0.65, 0.7])
def test_one_jump_is_no_growth_wherever_it_is(at, noise):
    growths, jumps = told(lambda x: 1 + 0.5 * (x >= at), noise=noise)
    assert growths <= 1
    assert jumps >= DRAWS - 2
    assert grown(lambda x: 1 + 0.5 * (x >= at), noise=noise).jump == pytest.approx(300 * at, abs=3)


def test_stages_of_a_training_are_no_growth():
    assert told(lambda x: 1 + 0.25 * (x > 0.33) + 0.25 * (x > 0.67))[0] <= 1


@pytest.mark.parametrize(
    "shape",
    [
        lambda x: 1 + 0.5 * x,
        lambda x: 1 + x * x,
        np.exp,
        lambda x: 1 + np.sqrt(x),
        lambda x: 1 + 2 * np.maximum(x - 0.5, 0),
    ],
    ids=["line", "square", "exponential", "root", "from the middle on"],
)
def test_growth_of_any_shape_that_goes_on_is_found(shape):
    assert told(shape)[0] >= DRAWS - 1


@pytest.mark.parametrize("noise", [0.05, 0.15, 0.5])
def test_even_steps_neither_grow_nor_jump(noise):
    assert told(lambda x: 1 + 0 * x, noise=noise) == (0, 0)


def test_steps_that_a_busy_machine_holds_up_at_last_do_not_grow():
    """A third of the last steps waits for one slice of 4 ms, of which a short run has no samples."""
    for seed in range(DRAWS):
        random = np.random.default_rng(seed)
        time = 2.5e6 * np.exp(0.03 * random.standard_normal(200))
        late = np.arange(200) >= 120
        found = step_growth(series(time + 4e6 * (late & (random.random(200) < 0.6))))
        assert found is None or found.ratio < 1.2


def staged(step=None, *, backward=True, count=40):
    """Steps of, in µs: wait 10, forward 100, backward 200, optimizer 50, and what follows it, which grows by 10."""
    log = Log()
    for number in range(count):
        at, after = log.at, 40 + 10 * number
        if backward:
            log.record(EventKind.BACKWARD, at + 110, 200)
        log.record(EventKind.OPTIMIZER, at + 320, 50)
        log.step(370 + after, wait=10)
    return log


def test_the_loop_is_split_where_hooks_timed_it():
    log = log_of(rank_record(staged()))
    steady = log.steady
    assert {name: spent[steady].tolist()[:2] for name, spent in log.stages.items() if name != "after"} == {
        "forward": [100 * US] * 2, "backward": [200 * US] * 2, "optimizer": [50 * US] * 2, "loop": [10 * US] * 2,
    }  # fmt: skip
    assert np.diff(log.stages["after"][steady])[:-1].tolist() == [10 * US] * (np.count_nonzero(steady) - 2)


def test_where_backward_passes_were_not_timed_no_stage_is_told():
    assert log_of(rank_record(staged(backward=False))).stages == {}


def test_the_stage_that_grows_is_told():
    found = step_growth(log_series(log_of(rank_record(staged(count=90))), "input.wait", ()))
    assert found.stage.part == "after"
    assert found.stage.coverage > 0.9


def test_the_wait_for_a_processor_is_in_the_stages_as_in_the_steps():
    """Half of each step is the queue: of a growth that two stages share neither has all."""
    time = np.linspace(100e6, 300e6, 90).astype(np.int64)
    found = series(time)
    stages = {"backward": time // 2, "forward": time // 2}
    growth_of = step_growth(revise(found, queued=time // 2, computed=time // 2, stages=stages))
    assert growth_of.stage is None


def looks(log, line, share):
    """Looks at the training thread, one in each step; of a step's length ``share`` is in ``line``."""
    random = np.random.default_rng(1)
    out = []
    for start, stop, number in zip(log.start, log.stop, log.index, strict=True):
        inside = random.random() < share(int(number))
        caller = f"train.py({9 if inside else 20 + number % 30}): main"
        place = line.replace("{number % 3}", str(number % 3)) if inside else f"net.py(7): layer_{number % 30}"
        lines = (caller, place)
        out.append(StackSample(t_ns=int(start + stop) // 2, lines=lines, held_ns=6_000_000, place="step"))
    return tuple(out)


def test_the_line_that_holds_the_growth_is_named():
    metric = "train.py(4): metric"
    record = rank_record(staged(count=300))
    log = log_of(record)
    record = revise(record, stacks=looks(log, metric, lambda number: number / 330))
    assert growing_line(record, log).frames[-1] == metric
    lines = revise(record, stacks=looks(log, "train.py({number % 3}): metric", lambda number: number / 330))
    assert "metric" in growing_line(lines, log).frames[-1]
    even = revise(record, stacks=looks(log, metric, lambda number: 0.1))
    assert growing_line(even, log) is None
    assert growing_line(revise(record, stacks=()), log) is None
