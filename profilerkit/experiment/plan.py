"""Which changes are worth a try: those that findings propose and that can be made at run time."""

from collections.abc import Container, Sequence

import msgspec

from profilerkit.model.finding import Outcome, Saving, SettingChange, in_order

#: Begins the name of a setting that is a variable of the environment.
VARIABLE = "env:"


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """Hold changes that are tried as one. Fields are those of ``Attempt``."""

    changes: tuple[SettingChange, ...]
    rules: tuple[str, ...] = ()
    predicted: Saving | None = None
    code: str = ""

    @property
    def name(self) -> str:
        """Return a name for its runs' directories."""
        words = "+".join(f"{change.setting}={change.proposed}" for change in self.changes)
        return "".join(letter if letter.isalnum() or letter in "=+._-" else "_" for letter in words)[:80]


def candidates_of(outcomes: Sequence[Outcome], settings: Container[str]) -> tuple[Candidate, ...]:
    """Return what findings propose and ``settings`` can make, the largest predicted saving first, each once."""
    found: dict[tuple[tuple[str, object], ...], Candidate] = {}
    for outcome, finding in in_order(outcomes):
        changes = finding.fix.changes if finding.fix is not None else ()
        if not changes or not all(_can_make(change.setting, settings) for change in changes):
            continue
        key = tuple((change.setting, change.proposed) for change in changes)
        first = found.get(key)
        found[key] = Candidate(
            changes=changes,
            rules=(*(first.rules if first else ()), outcome.rule),
            predicted=first.predicted if first and first.predicted else finding.saving,
            code=first.code if first else finding.fix.code if finding.fix else "",
        )
    return tuple(found.values())


def _can_make(setting: str, settings: Container[str]) -> bool:
    return setting in settings or setting.startswith(VARIABLE)


def by_hand(outcomes: Sequence[Outcome], settings: Container[str]) -> tuple[str, ...]:
    """Return the titles of findings with a fix that only the user can make, in the order of the report."""
    return tuple(
        finding.title
        for _, finding in in_order(outcomes)
        if finding.fix is not None
        and finding.saving is not None
        and not (finding.fix.changes and all(_can_make(change.setting, settings) for change in finding.fix.changes))
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
