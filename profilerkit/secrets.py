"""Takes secrets out of a command line, and of text that may quote one."""

import re
from collections.abc import Iterable, Iterator

MASK = "***"
#: The only variables that are ever recorded: none of them holds a secret.
ALLOWED_VARIABLES = (
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "KMP_AFFINITY",
    "LOCAL_WORLD_SIZE",
    "MKL_NUM_THREADS",
    "NCCL_ALGO",
    "NCCL_DEBUG",
    "NCCL_IB_DISABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_PROTO",
    "OMP_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_NCCL_ENABLE_TIMING",
    "TORCHINDUCTOR_MAX_AUTOTUNE",
    "WORLD_SIZE",
)
#: How a word ends that names a secret: ``--wandb-key``, ``apiKey``, ``OAUTH``; not ``--tokenizer``, ``--author``.
_ENDINGS = ("key", "token", "secret", "password", "passwd", "credential", "auth", "authorization")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
#: The value of a plural that is a count, not a secret: ``--max-tokens 512``, ``--tokens=1e9``.
_COUNT = re.compile(r"[\d_.]{1,12}(?:[eE]\d{1,2})?")
#: ``--name=value``, ``name=value`` (Hydra), ``+group.name=value``.
_ASSIGNED = re.compile(r"(?P<name>[-+~]*[\w.@/-]+)=(?P<value>.*)", re.DOTALL)
#: Hugging Face, OpenAI and its like, GitHub, GitLab, npm, AWS, Slack; a JSON Web Token, whose header ``{"`` is ``eyJ``;
#: 40 hex digits (Weights & Biases); a password in a URL.
_TOKEN = re.compile(
    r"\bhf_\w{8,}"
    r"|\bsk-[\w-]{16,}"
    r"|\bgh[pousr]_\w{8,}|\bgithub_pat_\w{8,}"
    r"|\bglpat-[\w-]{8,}(?:\.[\w-]+)*"
    r"|\bnpm_[0-9a-zA-Z]{30,}"
    r"|(?<![\w-])eyJ[\w-]{10,}(?:\.[\w-]*){2,4}"
    r"|\bAKIA[0-9A-Z]{16}\b"
    r"|\bxox[a-z]-[\w-]{8,}"
    r"|(?<![0-9a-zA-Z])[0-9a-fA-F]{40}(?![0-9a-zA-Z])"
    r"|(?<=://)[^\s/@:]*:[^\s/@]+(?=@)"
)
#: What one of those holds. It begins with no assertion, which makes it ten times as fast to look for (Python 3.12).
_MAY_BE_TOKEN = re.compile(r"hf_|sk-|gh[pousr]_|github_pat_|glpat-|npm_|eyJ|AKIA|xox[a-z]-|://|[0-9a-fA-F]{40}")


def masked(text: str) -> str:
    """``text`` without what looks like a well-known kind of token.

    >>> masked("no access with hf_abcdefghij")
    'no access with ***'
    """
    return _TOKEN.sub(MASK, text) if _MAY_BE_TOKEN.search(text) else text


def masked_arguments(arguments: Iterable[str]) -> Iterator[str]:
    """A command line without the values of options named like a secret, and without well-known tokens.

    >>> list(masked_arguments(["train.py", "--wandb-key=x", "--token", "y", "--use-auth", "--tokenizer=t"]))
    ['train.py', '--wandb-key=***', '--token', '***', '--use-auth', '--tokenizer=t']
    """
    before = None
    for argument in arguments:
        assigned = _ASSIGNED.fullmatch(argument)
        if assigned is not None and is_secret(assigned["name"], assigned["value"]):
            yield f"{assigned['name']}={MASK}"
        elif before is not None and not argument.startswith("-") and is_secret(before, argument):
            yield MASK
        else:
            yield masked(argument)
        before = argument if argument.startswith("-") and assigned is None else None


def is_secret(name: str, value: str) -> bool:
    """Whether ``value`` is a secret by the name of what holds it.

    >>> is_secret("wandb-key", "x"), is_secret("max-tokens", "512")
    (True, False)
    """
    words = [word.lower() for word in _WORD.findall(name)]
    if any(word.endswith(_ENDINGS) for word in words):
        return True
    plural = any(word.endswith("s") and word[:-1].endswith(_ENDINGS) for word in words)
    return plural and not _COUNT.fullmatch(value)
