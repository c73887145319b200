"""Ordinary training programs whose fault is known, as people write them; ``--fixed`` trains with the fix.

    python -m gpu_truth_parts.networks NAME [--fixed] [--steps N]

Each prints the mean milliseconds of a step as its last line, the device waited for before the first and after the last.
"""

import argparse
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import count

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet18, resnet50

#: The window of a recording, steps 6 to 15 by default, is closed before the clock starts.
_WARM_STEPS = 20


class Block(nn.Module):
    """A layer of a GPT."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend and think, each added to ``x`` of shape ``(rows, length, width)``."""
        rows, length, width = x.shape
        heads = self.qkv(self.before(x)).view(rows, length, 3, width // 64, 64).permute(2, 0, 3, 1, 4)
        attended = self.attend(*heads.unbind())
        x = x + self.out(attended.transpose(1, 2).reshape(rows, length, width))
        return x + self.mlp(self.between(x))

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Causal attention of heads of 64, each of shape ``(rows, heads, length, 64)``."""
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class GPT(nn.Module):
    """A small GPT over 8,192 tokens."""

    def __init__(self, layers: int = 8, width: int = 768, length: int = 512) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(8192, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.head = nn.Linear(width, 8192, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of shape ``(rows, length, 8192)``."""
        x = self.token(tokens) + self.place.weight[: tokens.shape[1]]
        return self.head(self.blocks(x))


class Text(Dataset):
    """Random rows of tokens."""

    def __init__(self, count: int, length: int = 512) -> None:
        self.rows = torch.randint(8192, (count, length + 1))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]


class Pictures(Dataset):
    """Pictures that are made as slowly as a JPEG of this size is read: some 8 ms of a core each."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        made = torch.randn(3, 400, 400, generator=torch.Generator().manual_seed(index))
        return functional.interpolate(made[None], (224, 224), mode="bicubic")[0], index % 10


def gpt(steps: Iterable[torch.Tensor], *, amp: bool, compiled: bool = False, logs_norms: bool = False) -> Iterator:
    """Train a GPT; ``logs_norms`` reads the norm of each gradient by itself."""
    model: nn.Module = GPT().cuda()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=3e-4, fused=True)
    run = torch.compile(model) if compiled else model
    for number, loaded in enumerate(steps):
        rows = loaded.cuda(non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=amp):
            logits = run(rows[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        if logs_norms:
            sum(parameter.grad.norm().item() for parameter in parameters)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if number % 20 == 0:
            loss.item()
        yield


def _texts(steps: int, rows: int) -> DataLoader:
    return DataLoader(Text(min(steps * rows, 4096)), batch_size=rows, num_workers=2, pin_memory=True, drop_last=True)


def _again(loader: Iterable) -> Iterator:
    while True:
        yield from loader


def gpt_fp32(steps: int, fixed: bool) -> Iterator:
    """Matrix products in FP32 without tensor cores; the fix is TF32."""
    torch.set_float32_matmul_precision("high" if fixed else "highest")
    return gpt(_again(_texts(steps, 16)), amp=False)


def gpt_eager(steps: int, fixed: bool) -> Iterator:
    """bf16 with one kernel per operator; the fix is torch.compile."""
    return gpt(_again(_texts(steps, 32)), amp=True, compiled=fixed)


def gpt_norms(steps: int, _fixed: bool) -> Iterator:
    """A small batch whose gradients' norms are logged one by one: the host is what the step waits for."""
    return gpt(_again(_texts(steps, 4)), amp=True, logs_norms=True)


def pictures(steps: int, fixed: bool) -> Iterator:
    """A convolutional network that waits for pictures; the fix is twelve workers."""
    model = resnet18(num_classes=10).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    workers = {"num_workers": 12, "persistent_workers": True} if fixed else {}
    loader = DataLoader(Pictures(64 * steps), batch_size=64, pin_memory=True, **workers)
    for batch in loader:
        images, labels = (part.cuda(non_blocking=True) for part in batch)
        with torch.autocast("cuda", torch.bfloat16):
            loss = functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


class Cells(nn.Module):
    """An LSTM written as a loop over time."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.width, self.cell, self.head = width, nn.LSTMCell(width, width), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classes of ``x`` of shape ``(times, rows, width)``."""
        hidden = cell = x.new_zeros(x.shape[1], self.width)
        for row in x:
            hidden, cell = self.cell(row, (hidden, cell))
        return self.head(hidden)


def small_kernels(_steps: int, fixed: bool) -> Iterator:
    """A network of small kernels, launched one by one; the fix is a CUDA graph of its forward and backward pass."""
    model: nn.Module = Cells().cuda()
    optimizer = torch.optim.Adam(model.parameters())
    inputs, labels = torch.randn(64, 64, 256, device="cuda"), torch.randint(10, (64,), device="cuda")
    run = torch.cuda.make_graphed_callables(model, (inputs,)) if fixed else model
    while True:
        loss = functional.cross_entropy(run(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


def images_amp(_steps: int, fixed: bool) -> Iterator:
    """A compiled network in FP16 whose scaler drains the queue in each step; the fix launches it as one graph."""
    mode = "reduce-overhead" if fixed else "default"
    model = torch.compile(resnet50().cuda().to(memory_format=torch.channels_last), mode=mode)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    scaler = torch.amp.GradScaler("cuda")
    images = torch.randn(128, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(1000, (128,), device="cuda")
    while True:
        with torch.autocast("cuda", torch.float16):
            loss = functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        yield


class Scores(Block):
    """A layer whose attention writes out each score."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The same by separate operators."""
        later = torch.ones(q.shape[-2], q.shape[-2], device=q.device, dtype=torch.bool).triu(1)
        return (q @ k.transpose(-1, -2) / 8).masked_fill(later, float("-inf")).softmax(-1) @ v


def scores(_steps: int, fixed: bool) -> Iterator:
    """Attention of 2,048 tokens by separate operators; the fix is one fused call."""
    layer = Block if fixed else Scores
    model = nn.Sequential(*(layer(768) for _ in range(6))).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for number in count():
        x = torch.randn(8, 2048, 768, device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = (model(x) - x).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if number % 10 == 0:
            loss.item()
        yield


def tables(_steps: int, fixed: bool) -> Iterator:
    """A recommender that looks up few rows of large tables; the fix is sparse gradients."""
    rows = 2_000_000
    embeddings = nn.ModuleList(nn.Embedding(rows, 64, sparse=fixed) for _ in range(8)).cuda()
    mlp = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1)).cuda()
    parts = [list(embeddings.parameters()), list(mlp.parameters())]
    sparse = [torch.optim.SparseAdam(parts[0]), torch.optim.Adam(parts[1])]
    optimizers = sparse if fixed else [torch.optim.Adam(parts[0] + parts[1])]
    while True:
        ids, clicked = torch.randint(rows, (8, 4096)).cuda(), torch.rand(4096, 1).cuda()
        found = torch.cat([table(each) for table, each in zip(embeddings, ids, strict=True)], 1)
        loss = functional.binary_cross_entropy_with_logits(mlp(found), clicked)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        yield


def actor(_steps: int, fixed: bool) -> Iterator:
    """A small policy asked for one action at a time, each read back; the fix keeps it on the processor."""
    device = "cpu" if fixed else "cuda"
    policy = nn.Sequential(nn.Linear(16, 128), nn.Tanh(), nn.Linear(128, 4)).to(device)
    optimizer = torch.optim.Adam(policy.parameters(), 1e-3)
    moves = 0.2 * torch.randn(4, 16, 16)
    while True:
        logs, rewards, state = [], [], torch.randn(16)
        for _ in range(64):
            choice = torch.distributions.Categorical(logits=policy(state.to(device)))
            action = choice.sample()
            logs.append(choice.log_prob(action))
            state = torch.tanh(moves[action.item()] @ state)
            rewards.append(-float(state.abs().mean()))
        reward = torch.tensor(rewards, device=device)
        loss = -(torch.stack(logs) * (reward - reward.mean())).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


def boxes(_steps: int, fixed: bool) -> Iterator:
    """A loss that picks boxes one by one, by masks that the host reads; the fix is one masked sum."""
    net = nn.Sequential(
        *(nn.Conv2d(3, 64, 3, 4, 1), nn.ReLU(), nn.Conv2d(64, 128, 3, 2, 1), nn.ReLU(), nn.Conv2d(128, 4, 1))
    ).cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    while True:
        images, wanted = torch.randn(16, 3, 256, 256, device="cuda"), torch.rand(16, 20, 4, device="cuda")
        found = net(images).flatten(2).transpose(1, 2).sigmoid()
        if fixed:
            apart, nearest = torch.cdist(found, wanted).min(2)
            own = wanted.gather(1, nearest[..., None].expand(-1, -1, 4))
            lost = functional.smooth_l1_loss(found, own, reduction="none").mean(2) * (apart < 0.4)
            loss = lost.sum() / 20
        else:
            loss = found.sum() * 0.0
            for each, own in zip(found, wanted, strict=True):
                apart, nearest = torch.cdist(each, own).min(1)
                for box in range(20):
                    mine = (apart < 0.4) & (nearest == box)
                    if mine.any():
                        loss = loss + functional.smooth_l1_loss(each[mine], own[box].expand(int(mine.sum()), 4))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


_ALL = (gpt_fp32, gpt_eager, gpt_norms, pictures, small_kernels, images_amp, scores, tables, actor, boxes)
PROGRAMS: dict[str, Callable[[int, bool], Iterator]] = {program.__name__: program for program in _ALL}


def main() -> None:
    """Train, and print the milliseconds of a step."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("name", choices=PROGRAMS)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    run = PROGRAMS[arguments.name](arguments.steps + _WARM_STEPS, arguments.fixed)
    for _ in range(_WARM_STEPS):
        next(run)
    torch.cuda.synchronize()
    began_s = time.perf_counter()
    for _ in range(arguments.steps):
        next(run)
    torch.cuda.synchronize()
    print(1e3 * (time.perf_counter() - began_s) / arguments.steps)


if __name__ == "__main__":
    main()
