"""A report without what names a person, a machine or a place: one pure pass before it is shown to anybody."""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from profilerkit.model import revise
from profilerkit.model.diff import Diff, Difference
from profilerkit.model.events import RawEvents, StepEvents
from profilerkit.model.finding import SettingChange
from profilerkit.model.report import Report
from profilerkit.model.trial import Attempt, Trial
from profilerkit.report.inert import short_paths
from profilerkit.rundir.places import Identity, identity_of
from profilerkit.secrets import MASK, command_shown, is_secret, masked, message_shown, setting_shown, version_shown

_Shown = TypeVar("_Shown", bound=Report | Diff | Trial)
USER, HOST = "<user>", "<host>"

_COMMAND = "command"  #: the difference that is a command line
#: An exception's class, and where a guard caught it, before what it says.
_RAISED = re.compile(
    r"(?<![\w.<>])([\w.<>]*(?:Error|Exception|Warning|Exit|Interrupt)(?: in [\w.<>]+)?): (?=\S)(.*)", re.DOTALL
)
_ADDRESS = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-][\w.-]*")
#: ``host:29500``, ``[host]:29500``, ``('host', 29500)``, an IPv4 and an IPv6 address.
_ENDPOINTS = (
    re.compile(r"(?<![\w./~…-])([\w.-]+)(?=\]?:\d{4,5}(?!\w))"),
    re.compile(r"(?<=[(\[\"'])([\w.-]+)(?=[\"']?, \d{4,5}[)\]])"),
    re.compile(r"(?<![\w.])(\d{1,3}(?:\.\d{1,3}){3})(?!\w|\.\w)"),
    re.compile(r"(?<![\w:])(?=[\da-fA-F:]*\d)((?:[\da-fA-F]{1,4}:|:){3,7}[\da-fA-F]{0,4})(?![\w:])"),
)
#: A URL by its host, and the file that it ends in.
_URL = re.compile(r"(?<![\w+.-])(\w[\w+.-]*)://(?!…)(?:[^\s/@]*@)?(\[[\da-fA-F:.]*\]|[\w.-]*)([^\s\"'`<>()]*)")
_FILE = re.compile(r"/[\w.-]*\w\.[A-Za-z]\w{0,4}(?=[?#]|\Z)")
#: Whose addresses name nobody: of documents that advice and errors point to.
_PUBLIC = (
    "github.com",
    "huggingface.co",
    "nvidia.com",
    "python.org",
    "pytorch.org",
    "perfetto.dev",
    "arxiv.org",
    "kernel.org",
)
_SOURCE_FILE = re.compile(r"\.(?:py|pyx|c|cc|cpp|cxx|cu|cuh|h|hpp|rs)$")
_ANY_MACHINE = re.compile(r"localhost|127\.[\d.]+|0\.0\.0\.0|\d+|")  #: names that hold on every machine
#: What ``torch.profiler.tensorboard_trace_handler`` calls a file: host, process, time (torch 2.11).
_TRACE_FILE = re.compile(r"(?<![\w.-])([\w.-]+?)(?=_\d+\.\d{10,}\.pt\.trace\.json)")
#: What people call it instead.
_NO_HOST = frozenset(("gpu", "node", "rank", "step", "trace", "worker"))
_PART_ENDS = r"(?=[/\\\s\"'`,;:()\]]|$)"


def redacted(report: Report, identity: Identity, *, is_local: bool = False) -> Report:
    """The report with what may be shown: numbers, names of code, and this package's own words.

    Left out are values of a command line but for numbers, variables, what programs said, names of users and hosts, and
    of absolute paths all but the last two parts. Where ``is_local``, the plain words of a message stay: it is for the
    person who ran the program. Words that look like a secret are masked everywhere. A redacted report stays the same,
    and ``Run.redacted`` says that it was done.
    """
    run = report.run
    hosts = [row.name for row in report.crowd.hosts] if report.crowd else []
    mask = _Mask(identity, hosts, run.messages, is_local=is_local)
    shown: Report = _rewritten(report, mask.text)
    return revise(
        shown,
        run=revise(
            shown.run,
            name=mask.part(run.name),
            files=tuple(map(mask.part, run.files)),
            messages=(),
            command=None if run.command is None else command_shown(run.command),
            settings={name: setting_shown(name, value) for name, value in run.settings.items()},
            versions={name: version_shown(text) for name, text in run.versions.items()},
            redacted=True,
        ),
        oom=revise(shown.oom, message=mask.message(report.oom.message)) if shown.oom and report.oom else None,
    )


def redacted_diff(diff: Diff, identity: Identity) -> Diff:
    """The comparison without what ``redacted`` takes out of a report; one of redacted reports stays the same."""
    mask = _Mask(identity)
    shown: Diff = _rewritten(diff, mask.text)

    def value(row: Difference, text: str | None) -> str | None:
        if text is None:
            return None
        if row.group == "software":
            return version_shown(text)
        if row.name == _COMMAND:
            return command_shown(text)
        return setting_shown(row.name, text) if row.group == "settings" else mask.text(text)

    return revise(
        shown,
        before=revise(shown.before, name=mask.part(diff.before.name)),
        after=revise(shown.after, name=mask.part(diff.after.name)),
        differences=tuple(
            revise(row, before=value(row, row.before), after=value(row, row.after)) for row in diff.differences
        ),
    )


def redacted_trial(trial: Trial, identity: Identity, *, is_local: bool = False) -> Trial:
    """Return the trial without what ``redacted`` takes out of a report, the command and lines of the user's files."""
    mask = _Mask(identity, is_local=is_local)
    if not is_local:
        together = trial.together and _redacted_attempt(trial.together)
        trial = revise(trial, attempts=tuple(map(_redacted_attempt, trial.attempts)), together=together)
    shown: Trial = _rewritten(revise(trial, command=(), patch=""), mask.text)
    return revise(shown, name=mask.part(trial.name))


def _redacted_attempt(attempt: Attempt) -> Attempt:
    """Return the attempt without values that may be secret, and what the program printed in plain words."""

    def value(change: SettingChange, known: bool | float | str) -> bool | float | str:
        if not isinstance(known, str):
            return known
        variable = change.setting.removeprefix("env:")
        return masked(known) if variable == change.setting or not known else setting_shown(variable, known)

    changes = tuple(revise(one, now=value(one, one.now), proposed=value(one, one.proposed)) for one in attempt.changes)
    return revise(attempt, changes=changes, reason=message_shown(attempt.reason))


def told(record: _Shown, *, redact: bool) -> _Shown:
    """Return the record as it is shown to others: redacted by the names of this machine, or as it is."""
    if not redact:
        return record
    makers: dict[type, Callable[[Any, Identity], Any]] = {Diff: redacted_diff, Trial: redacted_trial, Report: redacted}
    shown: _Shown = next(make for kind, make in makers.items() if isinstance(record, kind))(record, identity_of())
    return shown


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
    """What is put in place of each text; every text is worked on once. ``messages`` are quoted in some."""

    def __init__(
        self, identity: Identity, hosts: Sequence[str] = (), messages: Sequence[str] = (), *, is_local: bool = False
    ) -> None:
        self._identity = identity
        self._names = [(name, _user_pattern(name), USER) for name in identity.users if name]
        self._names += [(name, _host_pattern(name), HOST) for name in _with_short_names(identity.hosts)]
        self._known = {name: f"<host {number}>" for number, name in enumerate(hosts, 1)}
        self._names[:0] = [(name, _host_pattern(name), shown) for name, shown in self._known.items()]
        self._is_local = is_local
        self._quoted = [(text, self._said(*_head(text))) for text in sorted(messages, key=len, reverse=True)]

    def text(self, text: str) -> str:
        """Any text: also this package's own, which must come out as it is."""
        found = self._known.get(text)
        if found is None:
            found = self._known[text] = self._masked(text)
        return found

    def _masked(self, text: str) -> str:
        for quoted, shown in self._quoted:
            text = text.replace(quoted, shown)
        if ": " in text:
            text = _RAISED.sub(lambda match: self._said(match[1], match[2]), text)
        if ".pt.trace" in text:
            text = _TRACE_FILE.sub(lambda match: match[1] if match[1] in _NO_HOST else HOST, text)
        text = masked(text)
        if "/" in text or "\\" in text:
            text = short_paths(_URL.sub(_of_url, text))
        if "@" in text:
            text = _ADDRESS.sub(f"{USER}@{HOST}", text)
        if ":" in text or "." in text:
            for pattern in _ENDPOINTS:
                text = pattern.sub(_of_endpoint, text)
        for name, pattern, shown in self._names:
            if name in text:
                text = pattern.sub(shown, text)
        return text

    def _said(self, raised: str, said: str) -> str:
        is_shown = self._is_local and said and not is_secret(raised, MASK)
        return f"{raised}: {self.message(said)}" if is_shown else raised

    def message(self, text: str) -> str:
        """What a program said: nothing where it is shown to others."""
        return message_shown(text) if self._is_local else ""

    def part(self, text: str) -> str:
        """The name of a file or directory."""
        return USER if text in self._identity.users else HOST if text in self._identity.hosts else self.text(text)


def _head(message: str) -> tuple[str, str]:
    head, *rest = re.split(r":\s|\n", message, maxsplit=1)
    return head, "".join(rest)


def _of_endpoint(match: re.Match[str]) -> str:
    name = match[1]
    is_public = name.endswith(_PUBLIC) or _SOURCE_FILE.search(name) or _ANY_MACHINE.fullmatch(name)
    return HOST if re.search(r"[\d.:-]", name) and not is_public else name


def _of_url(match: re.Match[str]) -> str:
    scheme, host, rest = match.groups()
    if scheme == "file" or host.endswith(_PUBLIC) or (host and _ANY_MACHINE.fullmatch(host)):
        return match[0]
    file = _FILE.search(rest)
    return f"{scheme}://…{file[0] if file else ''}"


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


@cache
def _holds_text(kind: Any) -> bool:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return bool(_texts_of(kind))
    inner = get_args(kind)[1:] if get_origin(kind) is dict else get_args(kind)
    return kind is str or any(_holds_text(item) for item in inner)
