"""From a sample's recording to its redacted JSON, by the commands that users call."""

import subprocess
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from gallery import programs
from gallery.samples import Sample

#: A busy machine can change a verdict: such a recording is made again.
TRIES = 3
#: The rule that fires where a thread waits for a processor that others use.
_BUSY_RULE = "RU005"
#: Of the time of a comparison's side: more than this and the numbers are as much the others' as the run's.
_MOST_QUEUED = 0.1


def record(sample: Sample, target: Path) -> tuple[bool, str]:
    """Whether the JSON of a fresh recording was written to ``target``, which stays otherwise; and what to say of it."""
    said = ""
    for _ in range(TRIES):
        with tempfile.TemporaryDirectory(prefix="gallery.") as place:
            found = Path(place) / "sample.json"
            try:
                paths = sample.make(Path(place), sample.name)
                verb = "analyze" if len(paths) == 1 else "diff"
                programs.run(["-m", "profilerkit", verb, *paths, "-f", "json", "-o", found], Path(place))
                document = msgspec.json.decode(found.read_bytes())
            except (RuntimeError, OSError, subprocess.SubprocessError, msgspec.DecodeError) as error:
                said = str(error)
                continue
        said = verdict_of(document)
        if said == sample.says:
            target.write_bytes(msgspec.json.encode(document) + b"\n")
            return True, "recorded beside other programs: again when it is quiet" if _was_busy(document) else "recorded"
        said = f"the verdict is {said}, not {sample.says}"
    return False, said


def verdict_of(document: dict[str, Any]) -> str:
    """A report's bound and sub-cause, or a comparison's judgement: ``input-bound (fetch)``, ``faster``."""
    verdict = document["verdict"]
    if isinstance(verdict, str):
        return verdict
    return f"{verdict['bound']} ({verdict['detail']})" if verdict["detail"] else verdict["bound"]


def _was_busy(document: dict[str, Any]) -> bool:
    """Whether other programs had the processor for much of the time."""
    if "before" in document:
        return any((document[side]["queued_ratio"] or 0.0) > _MOST_QUEUED for side in ("before", "after"))
    return any(outcome["rule"] == _BUSY_RULE and outcome["status"] == "fired" for outcome in document["outcomes"])
