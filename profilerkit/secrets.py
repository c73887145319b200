"""Take secrets out of text: words drawn at random, values that are named like one, and what a program was given."""

import re
from collections.abc import Iterable, Iterator

MASK, LEFT_OUT = "***", "…"
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
_ENDINGS = ("key", "token", "secret", "password", "passwd", "passphrase", "credential", "auth", "authorization")
#: Shorter ones, which do so at the end of a name: ``--db-pwd``; not ``pin_memory``.
_LAST = tuple("bearer cookie creds dsn jwt pass pat pin pw pwd salt session sig signature webhook".split())  # noqa: SIM905
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
#: The value of a plural that is a count, not a secret: ``--max-tokens 512``, ``--tokens=1e9``.
_COUNT = re.compile(r"[\d_.]{1,12}(?:[eE]\d{1,2})?")
_ASSIGNED = re.compile(r"(?P<name>[-+~]*[\w.@/-]+)=(?P<value>.*)", re.DOTALL)
#: ``name=value``, ``'name': 'value'``, ``--name value``; ``Name: value`` and ``name value`` below.
_NAMED = re.compile(
    rf"(?<![\w.-])(?P<name>[\w.-]*(?i:{'|'.join((*_ENDINGS, *_LAST))})s?)"
    r"(?P<between>[\"']?\s*=\s*[\"']?|[\"']\s*:\s*[\"']?|(?P<weak>:\s+|\s+)[\"']?)(?:(?:Bearer|Basic)\s+)?"
    r"(?!(?:Bearer|Basic)\s)(?P<value>[^\s\"'`,;:(){}\[\]*&][^\s\"'`,;(){}\[\]&]*)"
)
_MAY_BE_NAMED = re.compile("|".join((*_ENDINGS, *_LAST)))  # in small letters: to ignore case takes longer
#: A private key, ``user:password`` of an option or a URL, and words that begin like a well-known kind of token.
_SHAPE = re.compile(
    r"-{5}BEGIN [A-Z ]+-{5}.*?(?:-{5}END [A-Z ]+-{5}|\Z)"
    r"|(?<=://)[^\s/@:]*:[^\s/@]+(?=@)"
    r"|(?<![\w-])-(?:u \S+:\S+|p [^\s-]\S*)"
    r"|\b(?:hf_|gh[pousr]_|github_pat_)\w{8,}|\bnpm_[0-9a-zA-Z]{30,}|\bsk-[\w-]{16,}|\b(?:glpat|xox[a-z])-[\w-]{8,}(?:\.[\w-]+)*"
    r"|\bA[KS]IA[0-9A-Z]{16}\b|(?<![\w-])eyJ[\w-]{10,}(?:\.[\w-]*)*=*"
    r"|\b[\da-fA-F]{8}(?:-[\da-fA-F]{4}){3}-[\da-fA-F]{12}\b",
    re.DOTALL,
)
#: What one of those holds: ten times as fast to look for.
_MAY_BE_SHAPE = re.compile(
    r"-{5}BEGIN|://|-[up] |hf_|gh[pousr]_|github_pat_|npm_|sk-|glpat-|xox|A[KS]IA|eyJ|\w{8}-\w{4}-"
)
_LONG = re.compile(r"[A-Za-z0-9+/=_-]{16,}")
_MANGLED = re.compile(r"(?<![A-Za-z0-9])_Z[A-Z\d]")
_SEGMENT = re.compile(r"[A-Za-z0-9]{16,}")
_PIECE = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")
#: Names have pieces of 3 characters and more (of 1,545 long ones in recordings all that mix capitals and digits), words
#: drawn from letters and digits of 2.3 on average; 1 of 200 with 32 characters passes.
_SHORTEST_PIECES = 3.0
#: Triton writes ``0d1d2de3c`` of arguments.
_HEX = re.compile(r"[\da-fA-F]{32,}")
_NUMBER = r"-?\d[\d_,.]*(?:[eE][+-]?\d{1,3})?(?:x\d+)*%?"
_SHORT_NUMBER = re.compile(r"-?[\d._]{1,9}(?:[eE][+-]?\d{1,3})?")
_MARKS = r"[\"'`()\[\]{}<>,.;:!?*=+]*"
#: A name with its dots, a number, or what was redacted before.
_PLAIN = re.compile(
    rf"{_MARKS}(?:[A-Za-z_]\w{{0,23}}(?:[.:]\w{{1,23}}){{0,5}}|{_NUMBER}|<(?:host|user)>(?::\d{{1,5}})?|){_MARKS}"
)
_VALUE = re.compile(rf"(?:[A-Za-z_]{{1,40}}|{_NUMBER})?(?:[,:;= ](?:[A-Za-z_]{{1,40}}|{_NUMBER}))*")
_NAME_OR_VERSION = re.compile(r"[\w.+:-]{1,60}")
_OPTION = re.compile(r"-[A-Za-z]|--[A-Za-z][\w.-]{1,40}|[+~]{0,2}[A-Za-z][\w./-]{0,60}")


def masked(text: str) -> str:
    """``text`` without what is named like a secret, and without words that are none a person would make.

    >>> masked("no access with hf_abcdefghij, password=sesame, rBv4Kq9ZtXw2LmS7 for sgemm_128x64_tn")
    'no access with ***, password=***, *** for sgemm_128x64_tn'
    """
    if _MAY_BE_SHAPE.search(text):
        text = _SHAPE.sub(MASK, text)
    if _MAY_BE_NAMED.search(text.lower()):
        text = _NAMED.sub(_of_named, text)
    return _LONG.sub(_of_long, text)


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


def command_shown(text: str) -> str:
    """A command line to be passed on: its script, the names of its options, and numbers that no secret is named by.

    >>> command_shown("train.py --data=/nfs/jo --lr 3e-4 --pin 1234 -v x y model.depth=50 --amp")
    'train.py --data=… --lr 3e-4 --pin … -v … model.depth=50 --amp'
    """
    first, *rest = text.split(" ")
    shown, option = [masked(first) if _NAME_OR_VERSION.fullmatch(first) else LEFT_OUT], ""
    for word in rest:
        name, equals, value = word.partition("=")
        is_name = bool(_OPTION.fullmatch(name)) and (word.startswith("-") or equals) and masked(name) == name
        if not is_name:
            name, value = option, word
        is_number = bool(name and _SHORT_NUMBER.fullmatch(value)) and not is_secret(name, MASK)
        value = value if is_number or not value else LEFT_OUT
        piece = f"{name}{equals}{value}" if is_name else value
        if piece != LEFT_OUT or shown[-1] != LEFT_OUT:
            shown.append(piece)
        option = name if is_name and not equals else ""
    return " ".join(shown)


def message_shown(text: str) -> str:
    """What a program said, for who ran it: plain words and numbers, up to a word that names a secret.

    >>> message_shown("no 'input_ids' in (64x128) at /nfs/jo: 20.00 MiB, password sesame")
    "no 'input_ids' in (64x128) at … 20.00 MiB, …"
    """
    shown: list[str] = []
    for word in masked(text).split():
        if is_secret(word, MASK) or word.startswith("-"):
            return " ".join((*shown, LEFT_OUT))
        shown.append(word if _PLAIN.fullmatch(word) else LEFT_OUT)
    return " ".join(shown)


def setting_shown(name: str, value: str) -> str:
    """The value of a setting or variable: numbers and plain words of a known one, else a mask."""
    is_known = name in ALLOWED_VARIABLES or (name.islower() and not is_secret(name, value))
    return value if is_known and _VALUE.fullmatch(value) and masked(value) == value else MASK


def version_shown(text: str) -> str:
    """The version of a package: one word, else a mask. Four numbers are no address there."""
    return text if _NAME_OR_VERSION.fullmatch(text) and masked(text) == text else MASK


def is_secret(name: str, value: str) -> bool:
    """Whether ``value`` is a secret by the name of what holds it. A ``KeyError`` is about keys of dictionaries.

    >>> is_secret("wandb-key", "x"), is_secret("max-tokens", "512")
    (True, False)
    """
    words = [word.lower() for word in _WORD.findall(name.replace("KeyError", ""))]
    if any(word.endswith(_ENDINGS) for word in words) or (words and words[-1] in _LAST):
        return True
    plural = any(word.endswith("s") and word[:-1].endswith(_ENDINGS) for word in words)
    return plural and not _COUNT.fullmatch(value)


def _of_named(match: re.Match[str]) -> str:
    name, value = match["name"], match["value"]
    begins = match.start("value") - match.start()
    if match["weak"] is not None and not name.startswith("-"):
        # In a sentence: what is named so, and is neither a count nor one of its words.
        is_said = ":" in match["weak"] or (re.search(r"\d", value) and re.search(r"[A-Za-z]", value))
        if not is_said or _COUNT.fullmatch(value):
            return match[0]
    return match[0][:begins] + MASK if name != "key" and is_secret(name, value) else match[0]


def _of_long(match: re.Match[str]) -> str:
    """The word, or a mask where it is longer than people make words of letters, digits and capitals."""
    word = match[0]
    if _MANGLED.search(word):
        return word
    encoded = word.rstrip("=")
    is_whole = not set("_-") & set(word) and (len(word) == 40 or "+" in word or encoded != word)
    is_drawn = any(map(_is_drawn, (*_SEGMENT.findall(word), *([word] if is_whole else ()))))
    # Triton writes ``0d1d2de3c`` of arguments.
    is_hex = any(set("abfABF") & set(digits) for digits in _HEX.findall(word))
    return MASK if is_drawn or is_hex else word


def _is_drawn(word: str) -> bool:
    pieces = _PIECE.findall(word)
    is_mixed = not word.islower() and not word.isupper() and any(piece.isdecimal() for piece in pieces)
    return is_mixed and sum(map(len, pieces)) < _SHORTEST_PIECES * len(pieces)
