"""``profilerkit try`` on ordinary programs: is the setting that mends them found, and is its saving true?"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gpu_truth_parts.checks import Check, holds
from gpu_truth_parts.device import Device
from gpu_truth_parts.program import python, step_ms
from profilerkit.model.trial import Attempt, Trial

_BUDGET_S, _QUICK_BUDGET_S = 150, 60
#: The setting that mends each program of ``networks``, and steps of a run.
_SETTINGS = {"gpt_fp32": ("matmul_precision", 60), "pictures": ("num_workers", 20), "gpt_eager": ("compile", 60)}


def checks(device: Device, place: Path) -> Iterator[Check]:
    """For each program: how the trial ended, all it tried, and its saving beside the fix that a person applies."""
    for name, (setting, steps) in _SETTINGS.items():
        path = place / "runs" / f"try_{name}"
        shutil.rmtree(path, ignore_errors=True)
        program = ["-m", "gpu_truth_parts.networks", name, "--steps", str(steps)]
        limits = ["--steps", str(steps), "--budget", str(_QUICK_BUDGET_S if device.quick else _BUDGET_S)]
        done = python("-m", "profilerkit", "try", "-o", str(path), "-f", "json", *limits, *program)
        found = path / "trial.json"
        if done.returncode or not found.exists():
            yield Check(name=name, passed=False, why=(done.stderr or done.stdout)[-500:])
            continue
        trial = msgspec.json.decode(found.read_bytes(), type=Trial)
        value: dict[str, object] = {attempt.text: _said(attempt) for attempt in trial.attempts}
        yield Check(name=f"{name}: all that was tried, in {trial.seconds:.0f} s", value=value | {"notes": trial.notes})
        attempt = next((one for one in trial.attempts if setting in {change.setting for change in one.changes}), None)
        kept = attempt is not None and attempt.kept
        yield Check(name=f"{name}: {setting} is kept", value=kept, passed=kept)
        if attempt is not None and attempt.saving is not None:
            bare_ms, fixed_ms = (step_ms(python(*program, *fixed)) for fixed in ([], ["--fixed"]))
            measured, saving = 1 - fixed_ms / bare_ms, attempt.saving
            predicted = attempt.predicted.expected if attempt.predicted else None
            value = {"predicted": predicted, "tried": [saving.low, saving.expected, saving.high]}
            yield Check(name=f"{name}: saving", value=value, reference=measured, passed=holds(saving, measured))


def _said(attempt: Attempt) -> str:
    saving = attempt.saving
    tried = f"{saving.low:.3f} to {saving.high:.3f}" if saving else attempt.reason
    return f"{attempt.outcome}, {tried}, losses {attempt.numbers}"
