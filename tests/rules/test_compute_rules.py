"""Rules about what kernels waste: they fire, pass and abstain, on either side of each threshold."""

import doctest

import pytest

from profilerkit.analysis.device.kernel_losses import KernelLosses, OptimizerWork, Scores
from profilerkit.analysis.device.roofline import MathFacts
from profilerkit.analysis.device.shape_losses import Alignment, Grid, Layout, Searches
from profilerkit.analysis.host.operators import HeldFacts
from profilerkit.analysis.job_facts import HostFacts
from profilerkit.analysis.steps.phases import RecordingFacts
from profilerkit.analysis.surroundings import HotDevice, Surroundings, Throttling
from profilerkit.analysis.whatif import room, throughput
from profilerkit.diagnosis.verdict import diagnose
from profilerkit.model.memory import Memory
from profilerkit.model.report import Compute
from profilerkit.model.run import Loader, Series
from profilerkit.rules import RULES
from profilerkit.rules.api import SMALLEST_SAVING, Fired, MissingData, NotApplicable, Passed
from profilerkit.rules.compute import misaligned_matmul
from profilerkit.rules.runner import run_rules, severity
from tests.recipes import GEMM, STEP_NS, facts, made, replace
from tests.rules import contract
from tests.rules.test_rules import (
    A100,
    JUST,
    chained,
    check,
    ended,
    finding,
    fp32,
    on_host,
    reading,
    timers_only,
    utilised,
)

CODES = ("CP002", "CP003", "CP005", "CP006", "CP007", "CP009", "CP010", "CP011")
GB = 10**9
NO_CONVOLUTION = Layout(conversion_share=0.0, convolution_share=0.0, per_step=0.0, example=None)


def wasting(shares=None, *, major=8, spec=A100, run=None, **kernel_losses):
    """A device of 108 multiprocessors that wastes only what is given."""
    nothing = KernelLosses(
        has_shapes=True,
        multiprocessors=108,
        alignment=None,
        grids=(),
        scores=(),
        optimizer=None,
        layout=NO_CONVOLUTION,
        searches=None,
    )
    math = MathFacts(fp32_share=0.0, tensor_core_share=0.5, compute_major=major, example=None)
    return facts(shares, kernel_losses=replace(nothing, **kernel_losses), math=math, spec=spec, **(run or {}))


def odd(share, *, lost=0.8, **changes):
    """16-bit products of an odd vocabulary that lose ``lost`` of their time."""
    found = Alignment(
        share=share,
        lost_share=None if lost is None else lost * share,
        sizes=(4096, 50257, 768),
        operator="aten::addmm",
        calls_per_step=2.0,
    )
    return wasting(alignment=found, **changes)


def gridded(share, *, blocks=0.5, idle=0.5, **changes):
    grid = Grid(kernel=GEMM, blocks_per_sm=blocks, share=share, idle_share=idle * share, per_step=3.0)
    return wasting(grids=(grid,), **changes)


def scored(share, *, queries=2048, keys=2048, peak=0.1, **changes):
    """Score matrices of whose time the arithmetic takes ``peak`` at the dense peak."""
    row = Scores(
        queries=queries,
        keys=keys,
        matrices=192,
        share=share,
        pointwise_share=0.6 * share,
        peak_share=None if peak is None else peak * share,
    )
    return wasting({"compute.membw": share}, scores=(row,), **changes)


def optimized(share, *, least=0.2, per_tensor=12.0, busy=1.0, name="AdamW", style="single", **changes):
    """An optimizer of whose time its bytes ask for ``least``."""
    work = OptimizerWork(
        name=name,
        style=style,
        kernels_per_step=150 * per_tensor,
        tensors=150.0 if style == "single" else None,
        kernels_per_tensor=per_tensor if style == "single" else None,
        share=share,
        kernel_share=busy * share,
        least_share=None if least is None else least * share,
        parameters=25_000_000,
    )
    return wasting({"compute.membw": share}, optimizer=work, **changes)


def by_processor(share, *, name="AdamW", style="single"):
    """The same where a processor runs the optimizer."""
    held = HeldFacts("optimizer", name, 150.0, share, share, style=style)
    return replace(on_host(), host=HostFacts(held=(held,)))


def converting(share, convolution=0.4, **changes):
    found = Layout(conversion_share=share, convolution_share=convolution, per_step=100.0, example="nchwToNhwcKernel")
    return wasting(layout=found, **changes)


def searching(share, *, steps=10, trials=4.0, operator="aten::cudnn_convolution", shapes=7, **changes):
    found = Searches(share=share, per_step=1.0, steps=steps, trials=trials, shapes=shapes, operator=operator)
    return wasting(searches=found, **changes)


SLOWED = Throttling(
    n=200,
    slowed_ratio=0.4,
    thermal_ratio=0.4,
    brake_ratio=0.0,
    capped_ratio=0.0,
    clock_mhz=1_050.0,
    free_clock_mhz=1_400.0,
    max_clock_mhz=1_500.0,
    power_mw=300_000.0,
    power_limit_mw=400_000.0,
)
#: A rank whose power limit holds its clock down, beside ranks that are not limited.
LIMITED = replace(
    SLOWED, slowed_ratio=0.0, thermal_ratio=0.0, capped_ratio=0.9, other_clock_mhz=1_450.0, others_capped_ratio=0.0
)

#: One whose power limit somebody lowered.
LOWERED = replace(
    LIMITED, other_clock_mhz=None, others_capped_ratio=None, free_clock_mhz=1_050.0, power_limit_default_mw=700_000.0
)


def throttled(found=SLOWED, **changes):
    return facts(throttling=replace(found, **changes))


def beside(hot_c, *, watts=400.0):
    """A device at ``hot_c`` and ``watts`` beside seven others at 38 °C and 380 W."""
    found = HotDevice(
        label="GPU 1",
        n=60,
        others=7,
        temperature_c=hot_c,
        others_temperature_c=38.0,
        power_mw=watts * 1e3,
        others_power_mw=380e3,
    )
    return facts(surroundings=Surroundings(hottest=found))


def underfed(share, *, memory=0.2, waits=0.0, spared=0.0, batch=32, **changes):
    """Half of ``share`` in small kernels and half in the host's work; ``memory`` of 100 GB in use at the peak."""
    known = Memory(
        peak_allocated_bytes=round(memory * 100 * GB),
        capacity_bytes=100 * GB,
        alive_before_bytes=round(spared * 100 * GB),
    )
    loader = Loader(kind="DataLoader", num_workers=4, batch_size=batch)
    shares = {"compute.small": share / 2, "over.dispatch": share / 2, "input.wait": waits}
    return facts(shares, **{"memory": known, "loader": loader, **changes})


FIRES = {
    "CP002": odd(0.2),
    "CP003": gridded(0.2),
    "CP005": scored(0.3),
    "CP006": optimized(0.2),
    "CP007": converting(0.1),
    "CP009": throttled(),
    "CP010": searching(0.2),
    "CP011": underfed(0.6),
    "CP012": beside(60.0),
}
PASSES = {
    "CP002": wasting(),
    "CP003": wasting(),
    "CP005": wasting(),
    "CP006": optimized(0.2, style="fused"),
    "CP007": converting(0.001),
    "CP009": throttled(slowed_ratio=0.0),
    "CP010": wasting(),
    "CP011": underfed(0.1),
    "CP012": beside(42.0),
}
MISSING = {
    **{code: [timers_only()] for code in CODES},
    "CP002": [timers_only(), wasting(has_shapes=False), odd(0.2, lost=None)],
    "CP003": [timers_only(), wasting(grids=None)],
    "CP005": [timers_only(), wasting(has_shapes=False), scored(0.3, peak=None)],
    "CP006": [timers_only(), wasting(), optimized(0.2, least=None)],
    "CP009": [facts()],
    "CP011": [timers_only(), replace(underfed(0.6), memory=Memory())],
}
NOT_APPLICABLE = {
    **{code: [on_host()] for code in CODES},
    "CP002": [on_host(), odd(0.2, major=6)],
    "CP006": [on_host(), optimized(0.2, style=None)],
    "CP007": [on_host(), wasting()],
}

#: (rule, option): just fires, just does not. Facts are on either side of the default value of the option.
THRESHOLDS = {
    ("CP003", "idle_ratio"): (gridded(0.5, idle=0.2), gridded(0.5, idle=0.2 - JUST)),
    ("CP005", "fewest_positions"): (scored(0.3, queries=512, keys=512), scored(0.3, queries=511, keys=512)),
    ("CP006", "smallest_share"): (optimized(0.05, per_tensor=5.0), optimized(0.05 - JUST, per_tensor=5.0)),
    ("CP006", "most_per_tensor"): (optimized(0.04, per_tensor=5.0 + JUST), optimized(0.04, per_tensor=5.0)),
    ("CP006", "smallest_on_host"): (by_processor(0.15, name="SGD"), by_processor(0.15 - JUST, name="SGD")),
    ("CP007", "smallest_share"): (converting(0.02), converting(0.02 - JUST)),
    ("CP009", "slowed_ratio"): (throttled(slowed_ratio=0.05 + JUST), throttled(slowed_ratio=0.05)),
    ("CP009", "low_clock_ratio"): (
        throttled(LIMITED, clock_mhz=1_349.0),
        throttled(LIMITED, clock_mhz=1_350.0),
    ),
    ("CP009", "low_limit_ratio"): (
        throttled(LOWERED, power_limit_mw=629_999.0),
        throttled(LOWERED, power_limit_mw=630_000.0),
    ),
    ("CP012", "hotter_c"): (beside(48.0), beside(48.0 - JUST)),
    ("CP010", "fewest_steps"): (searching(0.2, steps=2), searching(0.2, steps=1)),
    ("CP011", "smallest_share"): (underfed(0.30), underfed(0.30 - JUST)),
    ("CP011", "memory_ratio"): (underfed(0.6, memory=0.6 - 1e-9, spared=0.5), underfed(0.6, memory=0.6, spared=0.5)),
    ("CP011", "input_share"): (underfed(0.6, waits=0.05 - JUST), underfed(0.6, waits=0.05)),
    ("CP008", "low_mfu"): (
        utilised(0.95, 0.9, compute=Compute(mfu=0.2 - JUST)),
        utilised(0.95, 0.9, compute=Compute(mfu=0.2)),
    ),
}


def active(tensor, dram):
    """GPM samples of a busy device."""
    values = {"gpu.tensor_active": tensor, "gpu.dram_active": dram}
    return utilised(
        0.95,
        0.9,
        samples=tuple(
            Series(name=name, unit="ratio", n=9, mean=value, p10=value, p90=value, maximum=value)
            for name, value in values.items()
        ),
    )


THRESHOLDS |= {
    ("CP008", "low_tensor_ratio"): (active(0.2 - JUST, 0.3), active(0.2, 0.3)),
    ("CP008", "low_dram_ratio"): (active(0.1, 0.5 - JUST), active(0.1, 0.5)),
    ("CP008", "low_power_ratio"): (
        utilised(0.95, 0.9, throttling=replace(SLOWED, power_mw=239_999.0)),
        utilised(0.95, 0.9, throttling=replace(SLOWED, power_mw=240_000.0)),
    ),
    ("CP004", "bandwidth_ratio"): tuple(
        replace(chained(0.5), chains=replace(chained(0.5).chains, memory_ratio=ratio)) for ratio in (0.5, 0.5 - JUST)
    ),
}
#: Options without a side on which the rule falls silent: parts of a formula, tested by what they do to the saving; and
#: two shares below which the gate of every rule is silent by itself, tested with higher ones.
IN_FORMULAS = {
    ("CP002", "smallest_share"),
    ("CP003", "smallest_share"),
    ("CP002", "reached_ratio"),
    ("CP005", "reached_ratio"),
    ("CP007", "most_ratio"),
    ("CP007", "reached_ratio"),
}


@pytest.mark.parametrize("code", CODES)
def test_the_rule_fires_and_says_what_was_seen_what_to_do_and_how_to_check_it(code):
    found = finding(code, FIRES[code])
    assert all(entry.label and entry.origin and entry.unit and entry.value is not None for entry in found.evidence)
    assert found.title
    assert found.why
    assert found.fix is not None
    assert found.confirm
    assert (found.saving is None) is (found.bound is None)


@pytest.mark.parametrize("code", CODES)
def test_the_rule_passes_with_the_number_that_says_so(code):
    result = check(code, PASSES[code])
    assert isinstance(result, Passed), result
    assert result.reason


@pytest.mark.parametrize(("code", "known"), [(code, known) for code, every in MISSING.items() for known in every])
def test_the_rule_abstains_without_its_signal_and_says_how_to_record_it(code, known):
    result = check(code, known)
    assert isinstance(result, MissingData), result
    assert result.reason
    assert result.hint


@pytest.mark.parametrize(
    ("code", "known"), [(code, known) for code, every in NOT_APPLICABLE.items() for known in every]
)
def test_the_rule_is_not_about_runs_without_its_subject(code, known):
    result = check(code, known)
    assert isinstance(result, NotApplicable), result
    assert result.reason


@pytest.mark.parametrize(("code", "option"), THRESHOLDS)
def test_a_threshold_lies_where_it_says(code, option):
    above, below = THRESHOLDS[code, option]
    assert ended(code, above) is Fired
    assert ended(code, below) is Passed


@pytest.mark.parametrize(("code", "known"), [("CP002", odd), ("CP003", gridded)])
def test_a_smallest_share_holds_where_the_gate_lets_through(code, known):
    assert ended(code, known(0.3), smallest_share=0.3) is Fired
    assert ended(code, known(0.3 - JUST), smallest_share=0.3) is Passed
    assert ended(code, known(0.03 - JUST)) is Passed


def test_every_option_is_tried_on_both_sides_or_is_part_of_a_formula():
    tried = {pair for pair in set(THRESHOLDS) | IN_FORMULAS if pair[0] in CODES}
    assert tried == {(rule.code, name) for rule in RULES if rule.code in CODES for name in rule.__struct_fields__}


@pytest.mark.parametrize("code", CODES)
def test_no_rule_speaks_within_the_noise_of_the_step_time(code):
    assert ended(code, replace(FIRES[code], step_error_ns=0.5 * STEP_NS)) is Passed


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.9])
@pytest.mark.parametrize(
    "known", [odd, gridded, scored, optimized, converting, searching], ids=lambda recipe: recipe.__name__
)
def test_a_saving_is_ordered_below_its_bound_and_below_the_step(known, share):
    for outcome in run_rules(known(share), RULES):
        assert outcome.status != "error", outcome
        for found in outcome.findings:
            if found.saving is not None:
                assert 0.0 <= found.saving.low <= found.saving.expected <= found.saving.high <= 1.0
                assert found.saving.expected >= SMALLEST_SAVING


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("CP002", "50257 → 50304"),
        ("CP003", "54 → 108 blocks on 108 multiprocessors"),
        ("CP005", "one fused call"),
        ("CP006", "One tensor at a time → all at once: fused=True"),
        ("CP007", "contiguous (NCHW) → channels_last"),
        ("CP009", "1050 → 1400 MHz"),
        ("CP010", "cudnn.benchmark True → False"),
        ("CP011", "batch_size 32 → 128"),
    ],
)
def test_a_fix_names_the_current_and_the_proposed_value(code, text):
    assert text in finding(code, FIRES[code]).fix.text


@pytest.mark.parametrize(
    ("code", "bound", "detail"),
    [
        ("CP002", "compute-bound", "alignment"),
        ("CP003", "compute-bound", "grid"),
        ("CP005", "memory-bound", "bandwidth"),
        ("CP006", "memory-bound", "bandwidth"),
        ("CP007", "compute-bound", "layout"),
        ("CP009", "compute-bound", "clock"),
        ("CP010", "compute-bound", "autotune"),
    ],
)
def test_the_verdict_is_about_what_the_rule_found(code, bound, detail):
    known = {"CP002": odd(0.4), "CP003": gridded(0.5)}.get(code, FIRES[code])
    found = diagnose(known, run_rules(known, RULES))
    assert (found.bound, found.detail) == (bound, detail)
    assert len(found.headline.split()) <= 14
    assert "FP32" not in found.headline


def test_3d_convolutions_get_the_format_of_five_dimensions():
    known = converting(0.3)
    fixes = {}
    for is_3d in (True, False, None):
        layout = replace(known.kernel_losses.layout, is_3d=is_3d)
        fixes[is_3d] = finding("CP007", replace(known, kernel_losses=replace(known.kernel_losses, layout=layout))).fix
    assert "torch.channels_last_3d" in fixes[True].code
    assert "channels_last_3d" not in fixes[False].text + fixes[False].code
    assert "channels_last_3d" in fixes[None].text


# CP001


@pytest.mark.parametrize(("power", "low"), [(0.0, 0.0), (0.05, 0.5 * (1 - 8**-0.05))])
def test_the_low_end_is_what_nine_tenths_of_models_gained(power, low):
    usual = finding("CP001", fp32(0.5)).saving
    assert finding("CP001", fp32(0.5), least_power=1.0).saving.low >= usual.low
    assert finding("CP001", fp32(0.5), least_power=power).saving.low == pytest.approx(low)


def test_fp32_kernels_of_known_shapes_get_no_faster_than_their_bytes():
    known = fp32(0.5)
    priced = replace(known, math=replace(known.math, priced_share=0.4, floor_share=0.2, fastest_share=0.1))
    saving = finding("CP001", priced).saving
    assert saving.expected == pytest.approx(0.4 - 0.2 + 0.1 * (1 - 8**-0.65))
    assert saving.high == pytest.approx(0.4 - 0.1 + 0.1 * (1 - 1 / 8))


def test_little_fp32_math_passes_on_a_device_without_a_name():
    assert ended("CP001", fp32(0.05, major=None)) is Passed


@pytest.mark.parametrize(
    ("code", "known"),
    [
        ("CP001", fp32(0.5, spec=None)),
        ("CP005", scored(0.3, peak=None, spec=None)),
        ("CP006", optimized(0.2, least=None, spec=None)),
    ],
)
def test_what_is_seen_on_a_device_that_is_not_in_the_table_is_said_without_a_figure(code, known):
    found = finding(code, known)
    assert found.saving is None
    assert found.fix.text
    assert all(entry.source == "measured" for entry in found.evidence)


def test_without_peaks_only_what_fusing_removes_speaks_for_it():
    assert ended("CP005", scored(0.5 * SMALLEST_SAVING, peak=None, spec=None)) is Passed


def test_shapes_are_asked_for_before_the_device():
    known = optimized(0.2, least=None, spec=None)
    blind = replace(known.kernel_losses.optimizer, parameters=None)
    assert ended("CP006", replace(known, kernel_losses=replace(known.kernel_losses, optimizer=blind))) is MissingData


def blind_optimizer(share, busy, **changes):
    known = optimized(share, least=None, busy=busy, **changes)
    return replace(
        known,
        kernel_losses=replace(known.kernel_losses, optimizer=replace(known.kernel_losses.optimizer, parameters=None)),
    )


def test_without_shapes_the_idle_time_within_the_optimizer_is_its_price():
    found = finding("CP006", blind_optimizer(0.3, 0.4, name="", style="foreach"))
    assert (found.bound, found.detail) == ("overhead-bound", "launch")
    assert (found.saving.expected, found.saving.high) == (pytest.approx(0.18), pytest.approx(0.3))
    assert found.title.startswith("The optimizer takes 30 %")
    assert "fused=True" in found.fix.code


def test_without_shapes_and_without_idle_time_shapes_are_asked_for():
    assert ended("CP006", blind_optimizer(0.3, 1.0)) is MissingData


# CP002


def test_half_of_the_loss_is_held_against_the_alignment():
    saving = finding("CP002", odd(0.2)).saving
    assert (saving.expected, saving.high) == (pytest.approx(0.08), pytest.approx(0.16))
    assert finding("CP002", odd(0.2), reached_ratio=1.0).saving.expected == pytest.approx(0.16)


def test_the_other_products_of_the_run_say_what_can_be_reached():
    known = odd(0.2, lost=0.6)

    def reaching(ratio):
        return replace(
            known,
            kernel_losses=replace(
                known.kernel_losses, alignment=replace(known.kernel_losses.alignment, others_ratio=ratio)
            ),
        )

    assert finding("CP002", reaching(0.8)).saving.expected == pytest.approx(0.2 - 0.08 / 0.8)
    assert finding("CP002", reaching(1.0)).saving.expected == pytest.approx(0.12)
    assert ended("CP002", reaching(0.4)) is Passed


def test_odd_products_near_the_peak_are_left_alone():
    assert ended("CP002", odd(0.5, lost=0.07)) is Passed


def test_a_small_size_is_padded_to_the_next_multiple_of_eight():
    known = odd(0.2)
    small = replace(known.kernel_losses.alignment, sizes=(4096, 10, 768))
    assert "10 → 16" in finding("CP002", wasting(alignment=small)).fix.text


def test_products_over_attention_scores_are_fused_before_they_are_padded():
    known = odd(0.2)
    row = scored(0.1, queries=4096, keys=50257).kernel_losses.scores
    fused = replace(known, kernel_losses=replace(known.kernel_losses, scores=row))
    assert finding("CP002", fused).fix.text.startswith("Fuse the attention first (CP005)")
    assert finding("CP002", known).fix.text.startswith("Pad the sizes")


# CP003


def test_a_grid_is_a_bound_and_not_a_promise():
    saving = finding("CP003", gridded(0.2)).saving
    assert (saving.method, saving.low, saving.expected, saving.high) == ("bound", 0.0, 0.05, 0.1)


def test_without_shapes_a_grid_is_told_with_low_confidence():
    assert finding("CP003", gridded(0.2)).confidence == "low"
    by_shape = replace(gridded(0.2), compute=Compute(by_shape_ratio=0.9))
    assert finding("CP003", by_shape).confidence == "medium"


def test_a_device_of_unknown_size_is_told_in_blocks_for_each_multiprocessor():
    known = gridded(0.2, blocks=1.25, multiprocessors=None)
    assert "1.25 → 2 blocks for each multiprocessor" in finding("CP003", known).fix.text


# CP005


def test_fused_attention_still_does_the_arithmetic():
    saving = finding("CP005", scored(0.3, peak=0.1)).saving
    assert saving.expected == pytest.approx(0.3 - 0.03 / 0.5)
    assert saving.high == pytest.approx(0.3 - 0.5 * 0.03 / A100.achievable_ratio)
    assert finding("CP005", scored(0.3), reached_ratio=0.2).saving.expected == pytest.approx(0.15)


def test_attention_that_computes_most_of_its_time_is_left_alone():
    assert ended("CP005", scored(0.3, peak=0.48)) is Passed


# CP006


@pytest.mark.parametrize(
    ("name", "style", "text"),
    [
        ("SGD", "foreach", "One list of tensors at a time → all at once: fused=True"),
        ("RMSprop", "single", "One tensor at a time → lists of tensors: foreach=True"),
        ("Lion", "single", "`torch._foreach_` functions"),
    ],
)
def test_the_optimizers_next_form_is_proposed(name, style, text):
    assert text in finding("CP006", optimized(0.2, name=name, style=style)).fix.text


def test_an_optimizer_by_lists_without_a_fused_form_is_left_alone():
    assert ended("CP006", optimized(0.2, name="RMSprop", style="foreach")) is Passed


def test_only_names_of_torch_are_put_into_code():
    hostile = "Adam(); import os  #"
    assert finding("CP006", optimized(0.2, name=hostile)).fix.code == ""


def test_an_optimizer_at_the_rate_of_the_memory_is_left_alone():
    assert ended("CP006", optimized(0.2, least=0.91)) is Passed


def test_an_optimizer_between_whose_kernels_the_device_idles_is_bound_by_launches():
    found = finding("CP006", optimized(0.2, busy=0.49))
    assert (found.bound, found.detail) == ("overhead-bound", "launch")


# CP007


def test_the_conversions_go_and_the_convolutions_gain_a_little():
    saving = finding("CP007", converting(0.1)).saving
    assert (saving.expected, saving.high) == (pytest.approx(0.14), pytest.approx(0.22))
    other = finding("CP007", converting(0.1), reached_ratio=0.2, most_ratio=0.2).saving
    assert other.expected == other.high == pytest.approx(0.18)


# CP008


def test_low_mfu_is_explained_by_the_kernels_beside_matrix_math():
    known = replace(THRESHOLDS["CP008", "low_mfu"][0], device=replace(facts().device, busy_ratio=0.95))
    known = replace(known, parts=facts({"compute.membw": 0.6}).parts)
    found = finding("CP008", known)
    assert "MFU at 20 %" in found.title
    assert "bandwidth-limited kernels, with 60 %" in found.why
    assert (found.bound, found.saving) == (None, None)


# CP009


def test_only_matrix_math_follows_the_clock():
    known = replace(facts({"compute.membw": 0.5}), throttling=SLOWED)
    saving = finding("CP009", known).saving
    assert saving.expected == pytest.approx(0.5 * (1 - 1_050 / 1_400))
    assert saving.high == pytest.approx(0.5 * (1 - 1_050 / 1_500))


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({}, "Heat holds"),
        ({"thermal_ratio": 0.0, "brake_ratio": 0.4}, "The power supply holds"),
        ({"thermal_ratio": 0.0}, "The hardware holds"),
    ],
)
def test_what_holds_the_clock_down_is_named(changes, cause):
    assert cause in finding("CP009", throttled(**changes)).title


def test_a_power_limit_is_normal_where_the_other_ranks_have_it_too():
    found = finding("CP009", throttled(LIMITED))
    assert "power limit of 400 W" in found.fix.text
    assert "1050 → 1450 MHz" in found.fix.text
    assert ended("CP009", throttled(LIMITED, others_capped_ratio=0.9)) is Passed
    assert ended("CP009", throttled(LIMITED, others_capped_ratio=None, other_clock_mhz=None)) is Passed


def test_a_power_limit_that_somebody_lowered_is_named_and_what_it_costs_is_not_known():
    found = finding("CP009", throttled(LOWERED))
    assert found.title.startswith("A power limit of 400 W, where 700 W is the default, holds the device's clock down")
    assert "400 W → 700 W" in found.fix.text
    assert (found.saving, found.bound) == (None, None)
    hot = throttled(LOWERED, slowed_ratio=0.4, thermal_ratio=0.4, free_clock_mhz=1_400.0)
    assert "Heat holds" in finding("CP009", hot).title


def test_a_clock_that_full_load_holds_down_is_told_and_no_finding():
    passed = check("CP009", throttled(LOWERED, power_limit_mw=700_000.0))
    assert passed.reason == "the power limit holds the clock at 1050 of 1500 MHz, which is normal at full load"


def test_without_a_trace_a_throttled_clock_is_an_observation():
    known = replace(timers_only(), mode="steps", throttling=SLOWED)
    found = finding("CP009", known)
    assert (found.bound, found.saving) == (None, None)


def test_a_throttled_clock_that_costs_nothing_passes():
    assert ended("CP009", replace(facts({"compute.membw": 1.0}), throttling=SLOWED)) is Passed
    assert ended("CP009", throttled(clock_mhz=1_390.0)) is Passed


# CP010


def test_one_of_the_timed_algorithms_stays():
    saving = finding("CP010", searching(0.2, trials=4.0)).saving
    assert (saving.method, saving.expected, saving.high) == ("bound", pytest.approx(0.1), 0.2)


def test_a_tuned_product_is_told_from_a_convolution():
    assert "TunableOp" in finding("CP010", searching(0.2, operator="aten::mm")).fix.text


# CP011


def test_a_larger_batch_gains_samples_per_second_and_no_time():
    found = finding("CP011", underfed(0.6))
    assert (found.bound, found.saving) == (None, None)
    # 30 % host work, 30 % small kernels, 40 % that grow with the batch: four times as many samples in 1.9 steps.
    assert found.throughput.expected == pytest.approx(4 / (4 * 0.4 + 0.3) - 1)
    assert found.throughput.low == pytest.approx(4 / (1 + 3 * 0.7) - 1)
    assert found.throughput.high == pytest.approx(4 / (4 * 0.4) - 1)
    assert severity(found) == "high"


def test_what_a_step_of_many_reads_issues_may_grow_with_the_batch():
    device = replace(underfed(0.6).device, kernels_per_step=2_000.0)
    assert ended("CP011", underfed(0.6, syncs=reading(50.0), device=device)) is Fired
    assert ended("CP011", underfed(0.6, syncs=reading(51.0), device=device)) is Passed
    held = replace(device, held_ratio=1.0)
    assert ended("CP011", underfed(0.59, device=held)) is Passed  # an operator of milliseconds may grow as well


@pytest.mark.parametrize("times", [1.0, 1.5, 2.0, 8.0])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_gain_is_ordered_and_never_more_than_the_batch(share, times):
    gain = throughput(underfed(share, waits=0.04), times)
    assert 0.0 <= gain.low <= gain.expected <= gain.high <= times - 1.0 + 1e-12


def test_what_was_alive_before_does_not_grow_with_the_batch():
    assert room(underfed(0.6, memory=0.5)) == pytest.approx(1.8)
    assert room(underfed(0.6, memory=0.5, spared=0.4)) == pytest.approx(5.0)
    assert ended("CP011", underfed(0.6, memory=0.5)) is Passed
    assert "batch_size 32 → 128" in finding("CP011", underfed(0.6, memory=0.5, spared=0.4)).fix.text


def test_the_samplers_peak_stands_in_for_that_of_the_trace():
    peak = Series(name="allocator.allocated_peak", unit="bytes", n=9, mean=GB, p10=GB, p90=GB, maximum=20.0 * GB)
    known = replace(underfed(0.6), memory=Memory(capacity_bytes=100 * GB), samples=(peak,))
    assert "batch_size 32 → 128" in finding("CP011", known).fix.text


def test_workers_that_cannot_make_more_batches_limit_the_gain():
    slow = underfed(0.6, workers=made(3.5 * STEP_NS, count=4))
    assert throughput(slow, 4.0).high == pytest.approx(4 / (4 * 3.5 / 4) - 1)
    assert "batch_size 32 → 64" in finding("CP011", slow).fix.text


def test_without_a_known_batch_size_the_factor_is_told():
    assert "Batch × 4" in finding("CP011", replace(underfed(0.6), loader=None)).fix.text


def test_the_examples_of_padding_hold():
    assert doctest.testmod(misaligned_matmul).failed == 0
    assert doctest.testmod(misaligned_matmul).attempted > 0


# CP012


def test_a_hot_device_is_an_observation_that_tells_more_power_where_there_is():
    contract.fires("CP012", FIRES["CP012"])
    contract.passes("CP012", PASSES["CP012"])
    contract.abstains("CP012", facts())
    contract.is_not_applicable("CP012", on_host())
    assert finding("CP012", beside(60.0)).title == "GPU 1 runs 22 °C hotter than the 7 others, at 5.3 % more power"
    assert finding("CP012", beside(60.0, watts=390.0)).title == "GPU 1 runs 22 °C hotter than the 7 others"


def test_on_a_processor_the_optimizers_share_is_of_an_untraced_step():
    def traced(ratio, events):
        known = by_processor(0.2, name="SGD")
        seen = RecordingFacts(options=(), events=events, waited_ns=0.0, hidden_ns=0.0)
        trust = replace(known.trust, inflation_ratio=ratio)
        return replace(known, host=replace(known.host, recording=seen), trust=trust)

    assert finding("CP006", traced(1.0, 150.0)).evidence[0].value == 0.2
    assert finding("CP006", traced(1.5, 600.0)).evidence[0].value == pytest.approx(0.3 - 0.125)
    assert isinstance(check("CP006", traced(1.5, 150.0)), Passed)  # 150 of its operators are all that was recorded


def test_on_a_processor_a_fused_adam_saves_most_of_its_time_and_others_are_only_named():
    adam = finding("CP006", by_processor(0.3))
    assert adam.bound == "overhead-bound"
    assert adam.saving.expected == pytest.approx(0.21)
    assert adam.fix.text == "One tensor at a time → all at once: fused=True."
    named = finding("CP006", by_processor(0.3, name="SGD"))
    assert (named.saving, named.fix, named.bound) == (None, None, None)
    assert finding("CP006", by_processor(0.3, style="fused")).bound is None
    assert isinstance(check("CP006", by_processor(0.02)), Passed)
