"""What a block of memory is, from the lines of Python that asked for it."""

import re
from collections.abc import Iterable, Sequence

from profilerkit.model.oom import LiveKind
from profilerkit.trace.logs import BACKWARD

#: torch's own places in which modules get their parameters and are moved; and in which they run.
_MODULES = re.compile(r"torch[/\\]nn[/\\]modules[/\\]\w+\.py$")
_MOVES = ("_apply", "convert", "to", "cuda", "reset_parameters", "__init__")
_LOADS = ("from_pretrained", "load_state_dict", "reset_parameters")
_RUNS = ("forward", "_call_impl", "_wrapped_call_impl")
_FUNCTIONAL = re.compile(r"torch[/\\]nn[/\\]functional\.py$")
#: Names that code gives to the loss over the classes of every position, and to the scores before it: torch's own, those
#: of Hugging Face Transformers, Megatron and nanoGPT, and the nodes of its backward pass.
_LOSS = re.compile(r"cross_?entropy|log_?softmax|nll_?loss|CausalLMLoss|lm_head|(?:^|_)logits(?:_|$)", re.IGNORECASE)


def split_frame(frame: str) -> tuple[str, str]:
    """File and function of an entry of a stack; of the backward pass no file, and the name of its node.

    >>> split_frame("/job/model.py:12 forward"), split_frame("backward MmBackward0")
    (('/job/model.py', 'forward'), ('', 'MmBackward0'))
    """
    file, _, rest = frame.rpartition(":")
    line, _, function = rest.partition(" ")
    return (file, function) if file and line.isdigit() else ("", frame.removeprefix(BACKWARD).strip())


def files_of_modules(stacks: Iterable[Sequence[str]]) -> frozenset[str]:
    """Files with a function ``forward`` on any of the stacks: an ``__init__`` there makes parameters."""
    frames = {frame for stack in stacks for frame in stack if frame.endswith(" forward")}
    return frozenset(split_frame(frame)[0] for frame in frames)


def kind_of(frames: Sequence[str], modules: frozenset[str]) -> LiveKind:
    """What the innermost line says that says anything: a forward pass within the backward pass makes activations.

    >>> kind_of(("/job/model.py:12 forward", "backward CheckpointBackward"), frozenset())
    'activations'
    >>> kind_of(("/torch/optim/adam.py:180 _init_group",), frozenset()), kind_of((), frozenset())
    ('optimizer state', 'unseen')
    """
    for frame in frames:
        file, function = split_frame(frame)
        if frame.startswith(BACKWARD) or function == "backward":
            return "gradients"
        if _is_an_optimizers(file):
            return "optimizer state"
        is_module = _MODULES.search(file) is not None
        if function in _LOADS or (is_module and function in _MOVES) or (function == "__init__" and file in modules):
            return "parameters"
        if function == "forward" or (is_module and function in _RUNS) or _FUNCTIONAL.search(file):
            return "activations"
    return "other" if frames else "unseen"


def _is_an_optimizers(file: str) -> bool:
    """Return whether a file is an optimizer's: torch/optim/adam.py, distrib_optimizer.py, my_optim.py."""
    *folders, name = file.lower().replace("\\", "/").split("/")
    return any("optim" in folder for folder in folders) or ("optim" in name and name.endswith(".py"))


def is_of_loss(frames: Sequence[str]) -> bool:
    """Whether the loss over the classes, or the scores before it, asked for the memory, by the names on the stack.

    >>> is_of_loss(("/torch/nn/functional.py:3104 cross_entropy", "/job/train.py:4 step"))
    True
    """
    return any(_LOSS.search(split_frame(frame)[1]) for frame in frames)
