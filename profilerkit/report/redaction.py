"""A report without what names a person, a machine or a place: one pure pass before it is shown to anybody."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from profilerkit.model.change import revise
from profilerkit.model.diff import Diff
from profilerkit.model.events import RawEvents, StepEvents
from profilerkit.model.report import Report
from profilerkit.report.inert import short_paths, without_homes
from profilerkit.rundir.places import Identity, identity_of
from profilerkit.secrets import ALLOWED_VARIABLES, MASK, is_secret, masked, masked_arguments

USER, HOST = "<user>", "<host>"

#: The difference that is a command line.
_COMMAND = "command"
#: ``name=value`` from where the name begins, so that a long word is read once.
_ASSIGNED = re.compile(r"(?<![-+~\w.@/])[-+~\w.@/]+=[^\s\"'`,;()]+")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")
_NUMBER = re.compile(r"[\d.eE+-]+")
_ADDRESS = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-][\w.-]*")
#: ``host:29500``, ``[host]:29500``, ``('host', 29500)``, an IPv4 address, and the host of a URL.
_ENDPOINTS = (
    re.compile(r"(?<![\w./~…-])([\w.-]+)(?=\]?:\d{4,5}(?!\w))"),
    re.compile(r"(?<=[(\[\"'])([\w.-]+)(?=[\"']?, \d{4,5}[)\]])"),
    re.compile(r"(?<![\w.])(\d{1,3}(?:\.\d{1,3}){3})(?!\w|\.\w)"),
    re.compile(r"(?<=://)([\w.-]+)"),
)
#: The host of a URL whose credentials are masked: nothing else stands there, not even a word.
_BEHIND_MASK = re.compile(rf"(?<=://{re.escape(MASK)}@)(\[[\da-fA-F:.]+\]|[\w.-]+)")
#: Stands for a name with a blank while paths are cut, which end at a blank.
_SPACED = "\ufdd0"
#: Whose addresses name nobody: of documents that an error points to.
_PUBLIC = ("github.com", "huggingface.co", "nvidia.com", "python.org", "pytorch.org")
#: What a program says of a secret: ``password='x'``, ``'api_key': 'x'``, ``Authorization: Bearer x``. Before a mask the
#: word ``Bearer`` is no value: what is redacted stays the same.
_SAID = re.compile(
    r"(?<![\w-])([A-Za-z_][\w-]*)"
    r"([\"']?\s*[=:]\s*[\"']?(?:(?:Bearer|Basic)\s+)?)(?!(?:Bearer|Basic)\s+\*)([^\s\"'`,;(){}\[\]*]+)"
)
_CLASS = r"(?:[A-Z]\w*)?(?:Error|Exception|Warning)"
#: An exception's class before its message, ``KeyError: 'a'``, ``KeyError: 5``, ``TokenError: unknown token``, or before
#: another class: what else stands there may be the secret itself, ``InvalidTokenError: 9f8a7b6c``.
_RAISED = re.compile(rf"{_CLASS}:\s*(?:[\"'].*|-?\d{{1,5}}|[a-z]+[.,:;!?]*|[A-Za-z_.]*(?:Error|Exception|Warning):)")
#: A shorter value of ``name=value`` within a sentence is code: ``DataLoader(auth=x)``.
_SHORTEST_SECRET = 8
#: A word of a sentence behind what is no secret there: ``unknown token: pad``, but ``token: sesame``.
_WORDS = ("token", "tokens")
_OF_WORDS = re.compile(r"(?<![\w-])(?:unknown|unexpected|invalid|special|missing) \Z", re.IGNORECASE)
#: As far before a word as that is looked for.
_BEFORE = len("unexpected ")
_PROSE, _SHORT_WORD = re.compile(r":\s+"), re.compile(rf"[A-Za-z]{{1,{_SHORTEST_SECRET - 1}}}")
_SOURCE_FILE = re.compile(r"\.(?:py|pyx|c|cc|cpp|cxx|cu|cuh|h|hpp|rs)$")
#: Names that hold on every machine.
_ANY_MACHINE = re.compile(r"localhost|127\.[\d.]+|0\.0\.0\.0|\d+|")
#: What ``torch.profiler.tensorboard_trace_handler`` calls a file: host, process, time (torch 2.11).
_TRACE_FILE = re.compile(r"(?<![\w.-])([\w.-]+?)(?=_\d+\.\d{10,}\.pt\.trace\.json)")
#: What people call it instead.
_NO_HOST = frozenset(("gpu", "node", "rank", "step", "trace", "worker"))
#: torch's cache of compiled kernels has its user's name in its own.
_CACHE = re.compile(r"(?<=[/\\]torchinductor_)[^/\\\s\"'`,;:()]+")
_PART_ENDS = r"(?=[/\\\s\"'`,;:()\]]|$)"
_LAST_WORD = re.compile(r"[A-Za-z][a-z]*$")
#: Last word of an option, and what its value names.
_NAMING = dict.fromkeys(("account", "email", "entity", "login", "owner", "user", "username"), USER) | dict.fromkeys(
    ("addr", "address", "endpoint", "host", "hostname", "server"), HOST
)


def redacted(report: Report, identity: Identity) -> Report:
    """The report without tokens, values of the environment, names of users and hosts, and absolute paths.

    A home directory becomes ``~``, of another path the last two parts stay: ``…/dir/file.py``. Values of variables that
    capture does not know to be harmless, and of options named like a secret, become ``***``. Numbers, closed words
    and keys stay as they are; a redacted report stays the same. ``Run.redacted`` says that it was done.
    """
    mask = _Mask(identity)
    shown: Report = _rewritten(report, mask.text)
    run = report.run
    return revise(
        shown,
        run=revise(
            shown.run,
            name=mask.part(run.name),
            files=tuple(map(mask.part, run.files)),
            command=None if run.command is None else mask.command(run.command),
            ended=None if run.ended is None else mask.message(run.ended),
            failure=None if run.failure is None else mask.message(run.failure),
            settings={name: mask.setting(name, value) for name, value in run.settings.items()},
            redacted=True,
        ),
        verdict=revise(
            shown.verdict,
            consequence=mask.message(report.verdict.consequence),
            refuted_by=mask.message(report.verdict.refuted_by),
        ),
        # What a rule, or a part of capture, failed with is a program's message too.
        outcomes=tuple(
            revise(outcome, reason=None if known.reason is None else mask.message(known.reason))
            for outcome, known in zip(shown.outcomes, report.outcomes, strict=True)
        ),
        trust=revise(
            shown.trust,
            notes=tuple(map(mask.message, report.trust.notes)),
            signals=tuple(
                revise(signal, reason=mask.message(known.reason))
                for signal, known in zip(shown.trust.signals, report.trust.signals, strict=True)
            ),
        ),
        oom=revise(shown.oom, message=mask.message(report.oom.message)) if shown.oom and report.oom else None,
    )


def told(report: Report, *, redact: bool) -> Report:
    """The report as it is told to others: redacted by the names of this machine, or as it is where not ``redact``."""
    return redacted(report, identity_of()) if redact else report


def redacted_diff(diff: Diff, identity: Identity) -> Diff:
    """The comparison without what ``redacted`` takes out of a report; one of redacted reports stays the same."""
    mask = _Mask(identity)
    shown: Diff = _rewritten(diff, mask.text)

    def value(name: str, text: str | None) -> str | None:
        if text is None:
            return None
        return mask.command(text) if name == _COMMAND else mask.setting(name, text)

    return revise(
        shown,
        before=revise(shown.before, name=mask.part(diff.before.name)),
        after=revise(shown.after, name=mask.part(diff.after.name)),
        differences=tuple(
            revise(row, before=value(row.name, row.before), after=value(row.name, row.after))
            for row in diff.differences
        ),
        # Why a rule could not run is what it failed with: a program's message.
        findings=tuple(
            revise(row, reason=mask.message(known.reason))
            for row, known in zip(shown.findings, diff.findings, strict=True)
        ),
        obstacles=tuple(map(mask.message, diff.obstacles)),
        notes=tuple(map(mask.message, diff.notes)),
    )


def told_diff(diff: Diff, *, redact: bool) -> Diff:
    """The comparison as it is told to others: redacted by the names of this machine, or as it is."""
    return redacted_diff(diff, identity_of()) if redact else diff


def redacted_events(tables: Sequence[RawEvents], identity: Identity) -> tuple[RawEvents, ...]:
    """Raw events without what ``redacted`` takes out of a report."""
    mask = _Mask(identity)
    return tuple(revise(_rewritten(table, mask.text), origin=mask.part(table.origin)) for table in tables)


def masking(identity: Identity) -> Callable[[str], str]:
    """Return what takes out of any text what ``redacted`` takes out of a report."""
    return _Mask(identity).text


def redacted_step_events(events: Sequence[StepEvents], identity: Identity) -> tuple[StepEvents, ...]:
    """Events of steps without what ``redacted`` takes out of a report."""
    text = masking(identity)
    return tuple(
        revise(
            each,
            names=tuple(map(text, each.names)),
            tracks=tuple(revise(track, name=text(track.name)) for track in each.tracks),
        )
        for each in events
    )


class _Mask:
    """What is put in place of each kind of text; every text is worked on once."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._names = [(name, _user_pattern(name), USER) for name in identity.users if name]
        self._names += [(name, _host_pattern(name), HOST) for name in _with_short_names(identity.hosts)]
        self._spaced = _spaced_pattern(identity)
        self._known: dict[str, str] = {}

    def text(self, text: str) -> str:
        """Any text: also this package's own, which must come out as it is."""
        found = self._known.get(text)
        if found is None:
            found = self._known[text] = self._masked(text)
        return found

    def _masked(self, text: str) -> str:
        if ".pt.trace" in text:
            text = _TRACE_FILE.sub(lambda match: match[1] if match[1] in _NO_HOST else HOST, text)
        if "/" in text or "\\" in text:
            text = self._short_paths(_CACHE.sub(USER, without_homes(text, self._identity.homes)))
        if "=" in text:
            text = _ASSIGNED.sub(_of_sentence, text)
        for name, pattern, shown in self._names:
            if name in text:
                text = pattern.sub(shown, text)
        return _BEHIND_MASK.sub(_of_url, masked(text))

    def _short_paths(self, text: str) -> str:
        if self._spaced is None:
            return short_paths(text)
        return short_paths(self._spaced.sub(_SPACED, text)).replace(_SPACED, USER)

    def part(self, text: str) -> str:
        """The name of a file or directory."""
        return USER if text in self._identity.users else HOST if text in self._identity.hosts else self.text(text)

    def message(self, text: str) -> str:
        """What a program said, which may name whom it could not reach."""
        text = _without_said(_ASSIGNED.sub(_of_words, text))
        text = _ADDRESS.sub(f"{USER}@{HOST}", masked(text))
        for pattern in _ENDPOINTS:
            text = pattern.sub(_of_endpoint, text)
        return self.text(text)

    def command(self, text: str) -> str:
        """A command line whose words are joined by blanks."""
        return self.message(" ".join(_words(text.split(" "))))

    def setting(self, name: str, value: str) -> str:
        """The value of a setting, or of a variable of the environment."""
        said = _of_variable(f"{name}={value}")
        return MASK if said.endswith(f"={MASK}") else self.text(value)


def _words(words: list[str]) -> Iterator[str]:
    """The words of a command line without the values of options that name a secret, a person or a machine."""
    option = ""
    for word in masked_arguments(words):
        name, equals, value = word.partition("=")
        if equals:
            yield f"{name}={_of_option(name, value)}"
        else:
            yield word if word.startswith("-") else _of_option(option, word)
        option = word if word.startswith("-") and not equals else ""


def _of_option(name: str, value: str) -> str:
    last = _LAST_WORD.search(name)
    kind = _NAMING.get(last[0].lower()) if last else None
    head, colon, port = value.rpartition(":")
    place, end = (head, colon + port) if port.isdecimal() and head else (value, "")
    return value if kind is None or _ANY_MACHINE.fullmatch(place) else kind + end


def _of_variable(assigned: str) -> str:
    """``NAME=value``, its value masked where the name is a variable's and not known to be harmless."""
    name, _, _ = assigned.partition("=")
    if _VARIABLE.fullmatch(name) and name not in ALLOWED_VARIABLES:
        return f"{name}={MASK}"
    return next(masked_arguments([assigned]))


def _of_words(match: re.Match[str]) -> str:
    """As of a variable; a program also says ``K=64`` of a shape, and a number names nobody."""
    is_number = _NUMBER.fullmatch(match[0].partition("=")[2])
    return next(masked_arguments([match[0]])) if is_number else _of_variable(match[0])


def _of_sentence(match: re.Match[str]) -> str:
    name, _, value = match[0].partition("=")
    return match[0] if name == "key" or len(value) < _SHORTEST_SECRET else next(masked_arguments([match[0]]))


def _without_said(text: str) -> str:
    """The text without what is said of secrets; a word that is none may name one: ``login failed: password: x``."""
    out, at = [], 0
    while found := _SAID.search(text, at):
        begins = found.start(3)
        is_message = bool(_RAISED.fullmatch(found[0]))
        tells = not is_message and _tells_secret(found)
        # Within any other word nothing is looked for again: ``c10::DispatchKey::CUDA`` is code.
        goes_on = is_message or (not tells and (text[begins - 1].isspace() or text[begins - 1] in "\"'"))
        out += [text[at:begins], MASK if tells else "" if goes_on else found[3]]
        at = begins if goes_on else found.end()
    return "".join([*out, text[at:]])


def _tells_secret(match: re.Match[str]) -> bool:
    name, between, value = match.groups()
    of_variable = bool(_VARIABLE.fullmatch(name)) and "=" in between and not _NUMBER.fullmatch(value)
    is_short = name.lower() in _WORDS and _PROSE.fullmatch(between) and _SHORT_WORD.fullmatch(value)
    begins = match.start()
    is_word = is_short and _OF_WORDS.search(match.string, max(0, begins - _BEFORE), begins)
    is_named = name != "key" and is_secret(name, value) and not is_word
    return is_named or (of_variable and name not in ALLOWED_VARIABLES)


def _of_endpoint(match: re.Match[str]) -> str:
    name = match[1]
    is_public = name.endswith(_PUBLIC) or _SOURCE_FILE.search(name) or _ANY_MACHINE.fullmatch(name)
    return HOST if re.search(r"[\d.-]", name) and not is_public else name


def _of_url(match: re.Match[str]) -> str:
    return match[1] if match[1].endswith(_PUBLIC) or _ANY_MACHINE.fullmatch(match[1]) else HOST


def _spaced_pattern(identity: Identity) -> re.Pattern[str] | None:
    """The names of users and of their home directories that hold a blank, as parts of a path; ``None`` without one."""
    last = {re.split(r"[/\\]", home.rstrip("/\\"))[-1] for home in identity.homes}
    names = sorted((name for name in identity.users | last if " " in name), key=lambda name: (-len(name), name))
    return re.compile(rf"(?<=[/\\])(?:{'|'.join(map(re.escape, names))}){_PART_ENDS}") if names else None


def _user_pattern(user: str) -> re.Pattern[str]:
    """The name as a whole part of a path, and before a host."""
    name = re.escape(user)
    ends, begins = _PART_ENDS, r"(?<![^\s\"'`=,;:(\[])"
    return re.compile(rf"(?<=[/\\]){name}{ends}|{begins}{name}(?=[/\\])|(?<![\w.-]){name}(?=@\w)")


def _host_pattern(host: str) -> re.Pattern[str]:
    """The name wherever it stands as a word; one that could be an ordinary word only in an address."""
    name = re.escape(host)
    if re.search(r"[\d.-]", host):
        return re.compile(rf"(?<![\w.-]){name}(?![\w-])")
    return re.compile(rf"(?:(?<=\w@)|(?<=://)){name}\b|(?<![\w.-]){name}(?=:\d{{4,5}}\b)")


def _with_short_names(hosts: Iterable[str]) -> list[str]:
    """The names with and without their domain, longest first."""
    every = {name for host in hosts for name in (host, host.partition(".")[0]) if not _ANY_MACHINE.fullmatch(name)}
    return sorted(every, key=lambda name: (-len(name), name))


def _rewritten(value: Any, rewrite: Callable[[str], str]) -> Any:
    """The record with every free text in it rewritten; what has none is not walked."""
    if isinstance(value, str):
        return rewrite(value)
    if isinstance(value, tuple):
        return tuple(_rewritten(item, rewrite) for item in value)
    if isinstance(value, dict):
        return {key: _rewritten(item, rewrite) for key, item in value.items()}
    texts = _texts_of(type(value)) if isinstance(value, msgspec.Struct) else ()
    return revise(value, **{name: _rewritten(getattr(value, name), rewrite) for name in texts}) if texts else value


@cache
def _texts_of(record: type[msgspec.Struct]) -> tuple[str, ...]:
    """The fields that can hold free text: a word of a closed set names nobody."""
    return tuple(name for name, kind in get_type_hints(record).items() if _holds_text(kind))


def _holds_text(kind: Any) -> bool:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return bool(_texts_of(kind))
    inner = get_args(kind)[1:] if get_origin(kind) is dict else get_args(kind)
    return kind is str or any(_holds_text(item) for item in inner)
