"""What the programs beside this one train on: batches that take 24 ms to make, for models that take one or two.

So they are what bounds the loop on a machine that has several programs to each of its cores too.
"""

import time

import torch

BATCH, FEATURES, CLASSES = 4, 64, 4
_STALL_SECONDS = 0.006


class Samples(torch.utils.data.Dataset):
    """Random samples that take their time."""

    def __len__(self):
        return 60 * BATCH

    def __getitem__(self, index):
        time.sleep(_STALL_SECONDS)
        return torch.randn(FEATURES), index % CLASSES


def loader():
    return torch.utils.data.DataLoader(Samples(), batch_size=BATCH)


def get_batch():
    """A batch as nanoGPT makes one: no dataset, no loader."""
    time.sleep(BATCH * _STALL_SECONDS)
    return torch.randn(BATCH, FEATURES), torch.arange(BATCH) % CLASSES


def network(outputs=CLASSES):
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 256), torch.nn.ReLU(), torch.nn.Linear(256, outputs))
