"""An operator that computes without a core of this machine, as a device does for its host.

Two ranks that compute on the cores would fight for them where there are only two, and measure that.
"""

import time

import torch

_OPERATORS = torch.library.Library("profilerkit_demo", "DEF")
_OPERATORS.define("compute(Tensor features, float seconds) -> Tensor")


def _compute(features: torch.Tensor, seconds: float) -> torch.Tensor:
    time.sleep(seconds)
    return features.clone()


_OPERATORS.impl("compute", _compute, "CPU")


def compute(features: torch.Tensor, sample_s: float) -> torch.Tensor:
    """The features of a batch, after ``sample_s`` seconds for each sample: ``(samples, width)``."""
    computed: torch.Tensor = torch.ops.profilerkit_demo.compute(features, sample_s * len(features))
    return computed
