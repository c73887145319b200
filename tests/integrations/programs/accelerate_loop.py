"""A loop with Accelerate. ``record``: attached to the accelerator."""

import sys

import torch
from accelerate import Accelerator
from stalled import loader, network


def train(attach=lambda accelerator: None):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    attach(accelerator)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, batches = accelerator.prepare(model, optimizer, loader())
    for number, (inputs, labels) in enumerate(batches):
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if number == 40:
            accelerator.save_state("state")


if "record" in sys.argv:
    import profilerkit
    from profilerkit.integrations.accelerate import attach

    with profilerkit.profile(sys.argv[2]) as prof:
        train(lambda accelerator: attach(prof, accelerator))
else:
    train()
