"""Train without any word of profilerkit: a few steps one by one, then the whole step as a graph."""

import sys
import time

import torch
import virtual_device

REPLAYS, DEVICE_S = int(sys.argv[1]), 0.012

device = virtual_device.install().device
model = torch.nn.Linear(64, 64).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)


class Batches(torch.utils.data.IterableDataset):
    def __iter__(self):
        for _ in range(8 + REPLAYS):
            yield torch.zeros(4, 64)


def train(batch):
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    device.launch(DEVICE_S)
    return loss


graph = torch.cuda.CUDAGraph()
for number, batch in enumerate(torch.utils.data.DataLoader(Batches(), batch_size=None)):
    if number < 7:
        loss = train(batch)
    elif number == 7:
        with torch.cuda.graph(graph):
            loss = train(batch)
    else:
        time.sleep(0.0005)
        graph.replay()
    if number % 20 == 19:
        loss.item()
torch.cuda.synchronize()
print("trained")
