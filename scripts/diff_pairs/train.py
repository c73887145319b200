"""One recorded training loop: all that a step does is multiplied, it sleeps longer and computes more times."""

import time

import torch

import profilerkit
from diff_pairs.kinds import STEPS, Kind


class Batches(torch.utils.data.Dataset[torch.Tensor]):
    """Batches that exist already: the loader is no part of what is compared."""

    def __init__(self) -> None:
        self.batch = torch.randn(32, 64)

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.batch


def train(kind: Kind, scale: float, directory: str) -> None:
    """Record the loop into ``directory``."""
    # A second thread would share the other core with everything else on a small machine.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(Batches(), batch_size=None)
    # Step times are what is compared; a trace would take longer to write and to read than the loop takes.
    with profilerkit.profile(directory, deep=False, analyze=False) as prof:
        for batch in prof.wrap(loader):
            time.sleep(kind.asleep_s * scale)
            for _ in range(round(kind.passes * scale)):
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()
