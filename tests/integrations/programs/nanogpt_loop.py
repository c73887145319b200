"""A loop in the manner of nanoGPT: ``get_batch``, fetched ahead while gradients accumulate; no dataset, no loader.

``record``: with ``prof.step()``, and ``get_batch`` in a phase.
"""

import sys

import torch
from stalled import get_batch, network


def train(get_batch, stepped=lambda: None):
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    inputs, labels = get_batch()
    for _ in range(40):
        for _ in range(2):
            loss = torch.nn.functional.cross_entropy(model(inputs), labels) / 2
            inputs, labels = get_batch()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        stepped()


if "record" in sys.argv:
    import profilerkit

    with profilerkit.profile(sys.argv[2]) as prof:

        def timed_get_batch():
            with prof.phase("get_batch"):
                return get_batch()

        train(timed_get_batch, prof.step)
else:
    train(get_batch)
