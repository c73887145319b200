"""From a sample's recording to its redacted JSON, by the commands that users call."""

import subprocess
import tempfile
from pathlib import Path

import msgspec

from gallery import programs
from gallery.document import contention, labelled, load, verdict_of
from gallery.samples import Sample

#: A busy machine can change a verdict: such a recording is made again.
TRIES = 3
#: Of the directory that a run is made in: what names it says the same each time.
_PLACE = "gallery"


def record(sample: Sample, target: Path) -> tuple[bool, str]:
    """Whether the JSON of a fresh recording was written to ``target``, which stays otherwise; and what to say of it."""
    said = ""
    for _ in range(TRIES):
        with tempfile.TemporaryDirectory() as temporary:
            place = Path(temporary) / _PLACE
            place.mkdir()
            result = place / "sample.json"
            try:
                paths = sample.make(place, sample.name)
                verb = "analyze" if len(paths) == 1 else "diff"
                programs.run(["-m", "profilerkit", verb, *paths, "-f", "json", "-o", result], place)
                found = labelled(sample, load(result.read_bytes()))
            except (RuntimeError, OSError, subprocess.SubprocessError, msgspec.DecodeError) as error:
                said = str(error)
                continue
        said = verdict_of(found)
        if said == sample.says:
            target.write_bytes(msgspec.json.encode(found) + b"\n")
            return True, "recorded beside other programs: again when it is quiet" if contention(found) else "recorded"
        said = f"the verdict is {said}, not {sample.says}"
    return False, said
