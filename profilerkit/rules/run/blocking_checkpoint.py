"""RU001: training stops while checkpoints are written."""

import math

from profilerkit.rules.api import Facts, Fix, MissingData, Passed, Result, Rule, fired, record_longer, saving
from profilerkit.rules.evidence import told_line
from profilerkit.rules.run.stop import Stop, stops
from profilerkit.units import format_about, format_ns, format_ratio

_HOUR_NS = 3_600 * 10**9


class BlockingCheckpoint(Rule, frozen=True):
    """Find checkpoints that take {smallest_share} of the time of a recorded run.

    Why it costs: torch.save copies the weights and writes the file while the GPU has no work.

    Example:
        torch.save(model.state_dict(), "model.pt")
    Use instead:
        import threading
        state = {k: v.detach().cpu().clone() for k, v in model.state_dict().items()}
        writer = threading.Thread(target=torch.save, args=(state, "model.pt"))
        writer.start()
        writer.join()  # before the next checkpoint
    How it is measured: A save of t every k steps of T costs t / (k * T + t). At least {fewest_steps} steps must be
        timed. A background write saves {background_ratio} of it. Rarer saves are advised if sqrt(2 * t * time between
        failures) is {longer_interval} times the present interval. That time comes from a published job:
        {device_hours_between_failures} device-hours, at most {hours_between_failures} hours.
    When it is wrong: A window of ten traced steps seldom contains a checkpoint. Your own time between failures differs.
    Sources:
        https://docs.pytorch.org/tutorials/recipes/distributed_async_checkpoint_recipe.html
        https://arxiv.org/abs/2410.21680
    """

    code = "RU001"
    summary = "Training stops while checkpoints are written"

    smallest_share: float = 0.02
    #: Part of a checkpoint that leaves the loop when it is written in the background (a guess).
    background_ratio: float = 0.9
    #: Llama 3's 16,384 devices were interrupted 419 times in 54 days against plan (arXiv 2407.21783, table 5).
    device_hours_between_failures: float = 50_000.0
    hours_between_failures: float = 24.0  #: a choice
    longer_interval: float = 1.5  #: times as far apart from which a longer interval is worth naming (a choice)
    fewest_steps: int = 20  #: steps needed before the absence of a checkpoint means anything

    def check(self, facts: Facts) -> Result:
        stop = next((stop for stop in stops(facts) if stop.kind == "checkpoint"), None)
        if stop is None:
            if facts.steps.count < self.fewest_steps:
                few = f"{facts.steps.count} steps are too few to see checkpoints"
                return MissingData(few, record_longer(facts, f"{self.fewest_steps} steps"))
            return Passed("no checkpoint stops training")
        lost = stop.lost(facts)
        expected = self.background_ratio * lost
        if lost < self.smallest_share or not self.worth_saying(facts, expected):
            return Passed(f"checkpoints cost {format_ratio(lost)} of the time")
        return fired(
            facts,
            bound="overhead-bound",
            title=f"Checkpoint stops training for {format_ns(stop.each_ns)} {stop.how_often}",
            why=f"{stop.spread(facts)}{told_line(stop.line, 'one')}",
            evidence=stop.evidence(facts, "Checkpoint"),
            at_most="high" if stop.source == "measured" else "medium",
            detail="checkpoint",
            saving=saving(expected, lost),
            fix=Fix(
                text=f"torch.save in the loop → a background thread.{self._rarer(facts, stop)}",
                code="torch.distributed.checkpoint.async_save(state, checkpoint_id=path)",
            ),
            confirm="The long steps must be gone from the per-step figure.",
        )

    def _rarer(self, facts: Facts, stop: Stop) -> str:
        """The interval that loses least, as a sentence, where it is clearly longer than that of the run; else empty."""
        steps, step_ns = stop.steps_apart, (facts.mean_step_ns or 0.0) * (1.0 - stop.share)
        if steps is None or not step_ns:
            return ""
        by_devices = self.device_hours_between_failures / max(facts.world_size or 1, 1)
        failure_ns = min(by_devices, self.hours_between_failures) * _HOUR_NS
        best = math.sqrt(2.0 * stop.each_ns * failure_ns) / step_ns
        if best < self.longer_interval * steps:
            return ""
        hours, rarer = format_about(failure_ns / _HOUR_NS), f"every {format_about(steps)} → {format_about(best)} steps"
        return f" Or {rarer}, which loses least if the run fails every {hours} hours."
