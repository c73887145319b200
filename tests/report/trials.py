"""Trials with known content, made by hand."""

from profilerkit.model.diff import Range
from profilerkit.model.finding import CodeLine, Saving, SettingChange
from profilerkit.model.trial import Attempt, Trial

MS = 1e6
LOADER = CodeLine("train.py", 41, "main")


def attempt(setting, now, proposed, saving=None, **fields):
    """One change; ``saving`` is low, expected and high in percent."""
    ends = None if saving is None else Range(**dict(zip(("low", "expected", "high"), saving, strict=True)))
    return Attempt(changes=(SettingChange(setting, now, proposed),), saving=ends, **fields)


def predicted(low, expected, high, method="replay"):
    return Saving(low=low, expected=expected, high=high, method=method)


WORKERS = attempt(
    *("num_workers", 0, 3, (0.29, 0.31, 0.33)),
    outcome="faster",
    rules=("IN001",),
    predicted=predicted(0.2, 0.33, 0.34),
    step_ns=121 * MS,
    numbers="same",
    apart=0.0,
    runs=3,
    lines=(LOADER,),
    code="loader = DataLoader(..., num_workers=3)",
    kept=True,
)
FUSED = attempt(
    *("fused", False, True, (0.02, 0.03, 0.04)),
    outcome="faster",
    rules=("OV006",),
    predicted=predicted(0.01, 0.04, 0.06),
    step_ns=171 * MS,
    numbers="rounding",
    apart=8e-7,
    runs=4,
    lines=(CodeLine("train.py", 44, "<module>"),),
    code="optimizer = torch.optim.AdamW(..., fused=True)",
    kept=True,
)
AUTOCAST = attempt(
    *("autocast", "none", "bf16", (0.42, 0.44, 0.46)),
    outcome="faster",
    predicted=predicted(0.0, 0.4, 0.52),
    step_ns=98 * MS,
    numbers="differs",
    apart=2e-3,
    runs=3,
)
SLOWER = attempt("channels_last", False, True, (-0.13, -0.11, -0.09), outcome="slower", numbers="same", runs=3)
UNCLEAR = attempt(
    *("matmul_precision", "highest", "high", (-0.004, 0.006, 0.016)),
    outcome="no_change",
    runs=5,
    numbers="unknown",
    apart=0.2,
    reason="losses of the baseline differ by 3e-01 from run to run",
)
FAILED = attempt("foreach", False, True, outcome="failed", reason="SGD has no foreach here")
UNTRIED = attempt("num_workers", 0, 1, outcome="failed", tried=False, reason="there was no time left for it")
TOGETHER = Attempt(
    changes=(*WORKERS.changes, *FUSED.changes),
    outcome="faster",
    saving=Range(low=0.31, expected=0.335, high=0.36),
    step_ns=117 * MS,
    numbers="rounding",
    apart=9e-7,
    runs=3,
    kept=True,
)
PATCH = """\
--- a/train.py
+++ b/train.py
@@ -41 +41 @@
-    loader = DataLoader(data, batch_size=32)
+    loader = DataLoader(data, batch_size=32, num_workers=3)
"""


def trial(*attempts, together=None, **fields):
    known = {"step_ns": 176 * MS, "spread": 0.01, "runs": 3, "steps": 60, "seconds": 184.2}
    known["command"] = ("train.py", "--lr", "0.1")
    return Trial(
        name="train", created="2026-11-27T13:00:00+00:00", attempts=attempts, together=together, **known | fields
    )


def helps():
    attempts = (AUTOCAST, WORKERS, FUSED, UNCLEAR, SLOWER, FAILED)
    notes = ("2 runs were made again: other programs kept the processor from them.",)
    return trial(*attempts, together=TOGETHER, notes=notes, patch=PATCH)


TRIALS = {
    "helps": helps,
    "one": lambda: trial(WORKERS),
    "nothing helps": lambda: trial(UNCLEAR, SLOWER),
    "nothing to try": trial,
    "no time": lambda: trial(UNTRIED),
    "little time": lambda: trial(SLOWER, UNTRIED),
    "failed": lambda: trial(step_ns=None, spread=None, runs=1, notes=("A run without changes failed: exit code 1.",)),
}
