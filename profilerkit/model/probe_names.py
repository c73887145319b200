"""The names of the in-run probes; apart from their records, because what starts a recording loads nothing heavy."""

from typing import Literal

ProbeName = Literal["input", "workers", "comm", "bf16"]
#: Every probe, and what its steps do differently.
PROBE_WORDS: dict[ProbeName, str] = {
    "input": "steps on a batch at hand, without a fetch",
    "workers": "steps fed by a second loader with half or twice the workers",
    "comm": "steps without the exchange of gradients (no_sync)",
    "bf16": "steps under bf16 autocast",
}
