"""One optimizer step in two batches. ``record``: with ``prof.step()`` after each."""

import sys

import torch
from stalled import loader, network


def train(batches, stepped=lambda: None):
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    for number, (inputs, labels) in enumerate(batches, start=1):
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        (loss / 2).backward()
        if number % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
            stepped()


if "record" in sys.argv:
    import profilerkit

    with profilerkit.profile(sys.argv[2]) as prof:
        train(prof.wrap(loader()), prof.step)
else:
    train(loader())
