"""A loop as in any tutorial. ``record`` on the command line: with profilerkit's context manager."""

import sys

import torch
from stalled import loader, network


def train(batches):
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    for inputs, labels in batches:
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if "record" in sys.argv:
    import profilerkit

    with profilerkit.profile(sys.argv[2]) as prof:
        train(prof.wrap(loader()))
else:
    train(loader())
