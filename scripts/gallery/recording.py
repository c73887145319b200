"""From a sample's recording to its redacted JSON, by the commands that users call."""

import subprocess
import tempfile
from pathlib import Path

import msgspec

from gallery import programs
from gallery.samples import Sample

#: A busy machine can change a verdict: such a recording is made again.
TRIES = 3


def record(sample: Sample, target: Path) -> str:
    """Write the JSON of a fresh recording to ``target``; what went wrong in words, and then ``target`` stays."""
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
        said = _verdict(document)
        if said == sample.says:
            target.write_bytes(msgspec.json.encode(document) + b"\n")
            return ""
        said = f"the verdict is {said}, not {sample.says}"
    return said


def _verdict(document: dict) -> str:
    """A report's bound, or a comparison's judgement."""
    verdict = document["verdict"]
    return verdict if isinstance(verdict, str) else verdict["bound"]
