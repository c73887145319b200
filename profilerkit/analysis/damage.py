"""What was wrong with the traces and the ranks' records, in sentences for the report."""

from collections.abc import Sequence

from profilerkit.rundir.reader import RankRecord, named_ranks
from profilerkit.trace.columns import Damage

#: Places and files beyond so many are counted instead of named.
NAMED = 5


def damage_notes(traces: Sequence[tuple[str, Damage]]) -> list[str]:
    """Sentences about the damage of some traces, given with their names; of several traces each sentence names its own.

    >>> damage_notes([("trace.json", Damage(notes=("the compressed data ends early",)))])
    ['The compressed data ends early.']
    """
    several = len(traces) > 1
    notes = []
    for name, damage in traces:
        said = [f"{note[0].upper()}{note[1:]}." for note in damage.notes]
        if several and (counted := _counted(damage)):
            said.insert(0, f"{counted}.")
        notes += [f"{name}: {sentence}" if several else sentence for sentence in said]
    if several and len(notes) > NAMED:
        notes = [*notes[:NAMED], f"{len(notes) - NAMED} more sentences about damaged traces are left out."]
    places = [f"{name}: {place}" if several else place for name, damage in traces for place in damage.samples]
    return notes + [f"Damaged: {place}" for place in places[:NAMED]]


def _counted(damage: Damage) -> str:
    """How much was lost and repaired; empty when nothing was."""
    counts = ((damage.dropped, "dropped"), (damage.repaired, "repaired"))
    said = [f"{count:,} {'event' if count == 1 else 'events'} {what}" for count, what in counts if count]
    return ", ".join([*said, *(["the end is missing"] if damage.truncated else [])])


def record_notes(records: Sequence[RankRecord]) -> list[str]:
    """What was missing or damaged in the ranks' records; each sentence names the ranks it is about."""
    of: dict[str, list[int]] = {}
    for record in records:
        for note in record.notes:
            of.setdefault(note, []).append(record.rank)
    return [f"{named_ranks(ranks)}: {note}" for note, ranks in of.items()]
