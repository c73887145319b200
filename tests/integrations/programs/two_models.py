"""A generator against a discriminator, with an optimizer each. ``record``: with profilerkit's context manager."""

import sys

import torch
from stalled import BATCH, FEATURES, loader, network


def train(batches):
    generator, discriminator = network(FEATURES), network(1)
    forger = torch.optim.Adam(generator.parameters())
    expert = torch.optim.Adam(discriminator.parameters())
    judge = torch.nn.functional.binary_cross_entropy_with_logits
    real, fake = torch.ones(BATCH, 1), torch.zeros(BATCH, 1)
    for inputs, _ in batches:
        forged = generator(torch.randn(BATCH, FEATURES))
        expert.zero_grad()
        (judge(discriminator(inputs), real) + judge(discriminator(forged.detach()), fake)).backward()
        expert.step()
        forger.zero_grad()
        judge(discriminator(forged), real).backward()
        forger.step()


if "record" in sys.argv:
    import profilerkit

    with profilerkit.profile(sys.argv[2]) as prof:
        train(prof.wrap(loader()))
else:
    train(loader())
