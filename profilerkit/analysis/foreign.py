"""What a profile of another framework than PyTorch can tell: the device's work, and its steps where it marks them."""

from profilerkit.analysis.trace_facts import TraceFacts
from profilerkit.model.run import INPUT_WAIT, Signal


def unread(framework: str) -> str:
    """What such a profile lacks, in one sentence."""
    return (
        f"This is a profile of {framework}: device work and step marks are read; launches, loader waits and Python "
        "are not."
    )


def signals_of(trace: TraceFacts, framework: str) -> tuple[Signal, ...]:
    """What was read of such a profile, and what is not to be had from it."""
    hint = "look at the host's rows in the profile itself, for example in XProf or Perfetto"
    kind = f"a profile of {framework}"
    if trace.steps.inferred:
        steps = Signal(
            name="step marks",
            state="missing",
            reason=f"the profile has none; steps were taken from {trace.steps.found_by}",
            hint="jax.profiler.StepTraceAnnotation, or tf.profiler.experimental.Trace, around each step",
        )
    else:
        steps = Signal(name="step marks", state="measured")
    return (
        Signal(name="device events", state="measured"),
        steps,
        Signal(name="launch calls of device work", state="missing", reason=f"not read from {kind}", hint=hint),
        Signal(name=INPUT_WAIT, state="missing", reason=f"not read from {kind}", hint=hint),
        Signal(name="Python stacks", state="missing", reason=f"not read from {kind}", hint=hint),
        Signal(name="memory", state="missing", reason=f"not read from {kind}", hint=hint),
    )
