"""Which changes are worth a try: those that findings propose and that can be made at run time."""

from collections.abc import Container, Mapping, Sequence
from zlib import crc32

import msgspec

from profilerkit.model import revise
from profilerkit.model.finding import Fix, Outcome, Saving, SettingChange, in_order

VARIABLE = "env:"  #: begins the name of a setting that is a variable of the environment


_LOADER = ("num_workers", "persistent_workers", "prefetch_factor", "pin_memory")
#: How ``TrainingArguments`` of transformers have what its Trainer gives to torch.
_OF_TRAINER = {
    **{name: f"dataloader_{name}={{!r}}" for name in _LOADER},
    **{name: f"ddp_{name}={{!r}}" for name in ("bucket_cap_mb", "find_unused_parameters", "static_graph")},
    "checkpointing": "gradient_checkpointing={!r}",
    "compile": "torch_compile_mode={!r}",
    "autocast": "{}=True",
}


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """Hold changes that are tried as one. Fields are those of ``Attempt``."""

    changes: tuple[SettingChange, ...]
    rules: tuple[str, ...] = ()
    predicted: Saving | None = None
    code: str = ""

    @property
    def settings(self) -> frozenset[str]:
        """Return the names of the settings."""
        return frozenset(change.setting for change in self.changes)

    @property
    def name(self) -> str:
        """Return a name for its runs' directories."""
        words = "+".join(f"{change.setting}={change.proposed}" for change in self.changes)
        name = "".join(letter if letter.isalnum() or letter in "=+._-" else "_" for letter in words)[:80]
        return name if name == words else f"{name}-{crc32(words.encode()):08x}"


def code_of(candidate: Candidate, packages: Mapping[str, str]) -> str:
    """Return the text to paste; ``packages`` are setting to the one by which the user's line is the call.

    >>> code_of(Candidate(changes=(SettingChange("num_workers", 0, 3),)), {"num_workers": "transformers"})
    'TrainingArguments(..., dataloader_num_workers=3)'
    """
    texts = [
        _OF_TRAINER[change.setting].format(change.proposed)
        for change in candidate.changes
        if change.setting in _OF_TRAINER and packages.get(change.setting) == "transformers"
    ]
    is_whole = texts and len(texts) == len(candidate.changes)
    return f"TrainingArguments(..., {', '.join(texts)})" if is_whole else candidate.code


def candidates_of(
    outcomes: Sequence[Outcome], settings: Container[str], asked: Sequence[Candidate] = ()
) -> tuple[Candidate, ...]:
    """Return what is asked for, then what findings propose and ``settings`` can make, each once.

    Findings are in the order of the report: the largest predicted saving first.
    """
    found = {_key(candidate): candidate for candidate in asked}
    for outcome, finding in in_order(outcomes):
        fix = finding.fix
        if fix is None or not _can_make(fix, settings):
            continue
        new = Candidate(changes=fix.changes, rules=(outcome.rule,), predicted=finding.saving, code=fix.code)
        first = found.get(_key(new), new)
        rules = tuple(dict.fromkeys((*first.rules, outcome.rule)))
        # A finding knows what is there now; who asks for a change does not.
        found[_key(new)] = revise(
            new, rules=rules, predicted=first.predicted or new.predicted, code=first.code or new.code
        )
    return tuple(found.values())


def _key(candidate: Candidate) -> tuple[tuple[str, object], ...]:
    return tuple((change.setting, change.proposed) for change in candidate.changes)


def _can_make(fix: Fix, settings: Container[str]) -> bool:
    """Whether the fix is changes that can all be made at run time."""
    names = [change.setting for change in fix.changes]
    return bool(names) and all(name in settings or name.startswith(VARIABLE) for name in names)


def by_hand(outcomes: Sequence[Outcome], settings: Container[str]) -> tuple[str, ...]:
    """Return the titles of findings with a fix that only the user can make, in the order of the report."""
    return tuple(
        finding.title
        for _, finding in in_order(outcomes)
        if finding.fix is not None and finding.saving is not None and not _can_make(finding.fix, settings)
    )


def joined(candidates: Sequence[Candidate]) -> Candidate:
    """Return several as one; of two changes to one setting the first counts."""
    changes: dict[str, SettingChange] = {}
    for candidate in candidates:
        for change in candidate.changes:
            changes.setdefault(change.setting, change)
    return Candidate(
        changes=tuple(changes.values()),
        rules=tuple(dict.fromkeys(rule for candidate in candidates for rule in candidate.rules)),
        code="\n".join(candidate.code for candidate in candidates if candidate.code),
    )
