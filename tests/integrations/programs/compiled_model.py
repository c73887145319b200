"""A model under ``torch.compile``. ``record``: with profilerkit's context manager."""

import sys

import torch
from stalled import loader, network


def train(batches):
    # This backend needs no C++ compiler; what profilerkit must not break is the capture of the graph.
    model = torch.compile(network(), backend="aot_eager", fullgraph=True)
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
