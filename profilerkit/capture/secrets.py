"""Takes secrets out of a command line, and of text that may quote one, before it is written to disk."""

import re
from collections.abc import Iterable, Iterator

MASK = "***"
_NAMES = ("key", "token", "secret", "password", "passwd", "credential", "auth")
#: Names that contain one of these and hold none, for example ``--tokenizer gpt2``.
_HARMLESS = re.compile(r"tokeni[sz]", re.IGNORECASE)
#: ``--name=value``, ``name=value`` (Hydra), ``+group.name=value``.
_ASSIGNED = re.compile(r"(?P<name>[-+~]*[\w.@/-]+)=(?P<value>.*)", re.DOTALL)
#: Hugging Face, OpenAI and its like, GitHub, AWS, Slack; 40 hex digits (Weights & Biases); a password in a URL.
_TOKEN = re.compile(
    r"\bhf_\w{8,}"
    r"|\bsk-[\w-]{16,}"
    r"|\bgh[pousr]_\w{8,}|\bgithub_pat_\w{8,}"
    r"|\bAKIA[0-9A-Z]{16}\b"
    r"|\bxox[a-z]-[\w-]{8,}"
    r"|(?<![0-9a-zA-Z])[0-9a-fA-F]{40}(?![0-9a-zA-Z])"
    r"|(?<=://)[^\s/@]+:[^\s/@]+(?=@)"
)


def masked(text: str) -> str:
    """``text`` without what looks like a well-known kind of token.

    >>> masked("no access with hf_abcdefghij")
    'no access with ***'
    """
    return _TOKEN.sub(MASK, text)


def masked_arguments(arguments: Iterable[str]) -> Iterator[str]:
    """A command line without the values of options named like a secret, and without well-known tokens.

    >>> list(masked_arguments(["train.py", "--wandb-key=x", "--token", "y", "--use-auth", "--tokenizer=t"]))
    ['train.py', '--wandb-key=***', '--token', '***', '--use-auth', '--tokenizer=t']
    """
    secret_follows = False
    for argument in arguments:
        assigned = _ASSIGNED.fullmatch(argument)
        if assigned is not None and _is_secret(assigned["name"]):
            yield f"{assigned['name']}={MASK}"
        elif secret_follows and not argument.startswith("-"):
            yield MASK
        else:
            yield masked(argument)
        secret_follows = argument.startswith("-") and assigned is None and _is_secret(argument)


def _is_secret(name: str) -> bool:
    name = _HARMLESS.sub("", name.lower())
    return any(word in name for word in _NAMES)
