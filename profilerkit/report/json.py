"""Report to JSON text and back, and the schema that ships with the package."""

from pathlib import Path
from typing import Any

import msgspec

from profilerkit.errors import UnreadableInputError
from profilerkit.model.diff import Diff
from profilerkit.model.report import SCHEMA_VERSION, Report
from profilerkit.model.trial import Trial

#: File in which the schema of each record ships.
_SCHEMAS: dict[type[msgspec.Struct], str] = {
    Report: "schema.json",
    Diff: "diff_schema.json",
    Trial: "trial_schema.json",
}
_DRAFT = "https://json-schema.org/draft/2020-12/schema"


class _Envelope(msgspec.Struct):
    """The one field that every version of the format has."""

    schema_version: int


def render(record: Report | Diff | Trial) -> str:
    """Indented JSON with a final line end; equal records give equal text, and ``load`` gives a report back.

    File names that are not valid UTF-8 lose the bytes that are not.
    """
    try:
        encoded = msgspec.json.encode(record, order="deterministic")
    except UnicodeEncodeError:
        encoded = msgspec.json.encode(_without_surrogates(msgspec.to_builtins(record)), order="deterministic")
    return msgspec.json.format(encoded, indent=2).decode("utf-8") + "\n"


def _without_surrogates(value: Any) -> Any:
    """The same builtins with ``?`` for each code point that UTF-8 cannot carry."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_surrogates(item) for item in value]
    return value


def load(text: str | bytes) -> Report:
    """The report in ``text``. Fields of a later minor change are ignored: the format is additive.

    Raises:
        UnreadableInputError: not JSON, not a report, or of another ``schema_version``.
    """
    try:
        version = msgspec.json.decode(text, type=_Envelope).schema_version
        if version == SCHEMA_VERSION:
            return msgspec.json.decode(text, type=Report)
    except msgspec.ValidationError as error:
        raise UnreadableInputError(
            "this JSON is not a profilerkit report",
            cause=str(error),
            hint="pass a report.json that profilerkit wrote, or the trace itself",
        ) from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise UnreadableInputError(
            "the report cannot be read as JSON", cause=str(error), hint="the file may be truncated; write it again"
        ) from error
    raise UnreadableInputError(
        f"the report has schema_version {version}, this profilerkit reads {SCHEMA_VERSION}",
        cause="another version of profilerkit wrote it",
        hint="make it again with this version, or install the version that wrote it",
    )


def schema_path(kind: type[msgspec.Struct] = Report) -> Path:
    """Return the schema of a report, a comparison or a trial that ships with the package."""
    return Path(__file__).with_name(_SCHEMAS[kind])


def schema_text(kind: type[msgspec.Struct] = Report) -> str:
    """Return the JSON Schema of the record as indented text with a final line end."""
    schema = {"$schema": _DRAFT, "title": f"profilerkit {kind.__name__.lower()}", **msgspec.json.schema(kind)}
    return msgspec.json.format(msgspec.json.encode(schema), indent=2).decode("utf-8") + "\n"


def write_schemas() -> None:
    """Write the schemas where they ship."""
    for kind in _SCHEMAS:
        schema_path(kind).write_text(schema_text(kind), encoding="utf-8")
