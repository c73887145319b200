"""JSON: round trip, schema, and errors that say what to do."""

import json

import msgspec
import pytest

from profilerkit.errors import UnreadableInputError
from profilerkit.model.report import Report
from profilerkit.report import json as report_json
from profilerkit.results import as_report
from tests.report.samples import SAMPLES

KINDS = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}


def problems(value, schema, root, where="report"):
    """What the value breaks of the subset of JSON Schema that msgspec writes."""
    if "$ref" in schema:
        return problems(value, root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root, where)
    if "anyOf" in schema:
        tries = [problems(value, option, root, where) for option in schema["anyOf"]]
        return [] if any(not found for found in tries) else [f"{where}: fits nothing of anyOf"]
    found = []
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{where}: {value!r} is not one of {schema['enum']}")
    kind = schema.get("type")
    if kind and (not isinstance(value, KINDS[kind]) or (isinstance(value, bool) and kind != "boolean")):
        return [f"{where}: {value!r} is not {kind}"]
    if isinstance(value, dict):
        known = schema.get("properties", {})
        found += [f"{where}: {name} is missing" for name in schema.get("required", ()) if name not in value]
        if "title" in schema:
            found += [f"{where}: {name} is not in the schema" for name in value if name not in known]
        for name, item in value.items():
            extra = schema.get("additionalProperties")
            own = known.get(name, extra if isinstance(extra, dict) else {})
            found += problems(item, own, root, f"{where}.{name}")
    if isinstance(value, list):
        places = schema.get("prefixItems", [])
        for number, item in enumerate(value):
            own = places[number] if number < len(places) else schema.get("items") or {}
            found += problems(item, own, root, f"{where}[{number}]")
    return found


@pytest.mark.parametrize("name", [name for name in SAMPLES if name != "hostile"])
def test_a_report_survives_the_round_trip(name):
    report = SAMPLES[name]()
    text = report_json.render(report)
    assert report_json.load(text) == report
    assert report_json.render(report_json.load(text)) == text


def test_names_that_are_not_unicode_lose_only_those_bytes():
    report = SAMPLES["hostile"]()
    loaded = report_json.load(report_json.render(report))
    assert loaded.run.name == report.run.name.replace("\udc80", "?")
    assert loaded.steps.rows[0].time_ns == report.steps.rows[0].time_ns


@pytest.mark.parametrize("name", SAMPLES)
def test_json_fits_the_schema_that_ships(name):
    schema = json.loads(report_json.schema_path().read_text(encoding="utf-8"))
    value = json.loads(report_json.render(SAMPLES[name]()))
    assert problems(value, schema, schema) == []


def test_the_validator_of_this_test_finds_a_wrong_value():
    schema = json.loads(report_json.schema_text())
    value = json.loads(report_json.render(SAMPLES["balanced"]()))
    value["verdict"]["bound"] = "cursed"
    value["steps"]["count"] = "30"
    del value["run"]
    assert len(problems(value, schema, schema)) == 3


def test_the_shipped_schema_is_fresh():
    assert report_json.schema_path().read_text(encoding="utf-8") == report_json.schema_text(), (
        "run: python -c 'from profilerkit.report.json import write_schemas; write_schemas()'"
    )


def test_text_is_indented_and_mappings_are_in_order():
    report = SAMPLES["input_bound"]()
    versions = dict(reversed(report.run.versions.items()))
    shuffled = msgspec.structs.replace(report, run=msgspec.structs.replace(report.run, versions=versions))
    text = report_json.render(shuffled)
    assert text == report_json.render(report)
    assert text.startswith('{\n  "schema_version": 1,')
    assert text.endswith("}\n")


def test_fields_of_a_later_version_are_ignored():
    report = SAMPLES["balanced"]()
    value = json.loads(report_json.render(report))
    value["later"] = {"deep": [1]}
    value["run"]["later"] = 1
    assert report_json.load(json.dumps(value)) == report


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "cannot be read as JSON"),
        ('{"schema_version": 1, "verdict"', "cannot be read as JSON"),
        ("[]", "not a profilerkit report"),
        ('{"traceEvents": []}', "not a profilerkit report"),
        ('{"schema_version": "1"}', "not a profilerkit report"),
        ('{"schema_version": 1}', "not a profilerkit report"),
        ('{"schema_version": 7}', "schema_version 7, this profilerkit reads 1"),
        (b'{"schema_version": 1, "x": "\xff"}', "report"),
    ],
)
def test_what_is_not_a_report_is_refused_with_cause_and_hint(text, what):
    with pytest.raises(UnreadableInputError, match=what) as caught:
        report_json.load(text)
    assert caught.value.cause
    assert caught.value.hint


def test_report_methods_write_files(tmp_path):
    report: Report = SAMPLES["balanced"]()
    path = tmp_path / "report.json"
    assert as_report(report).to_json(path, redact=False) == path.read_text(encoding="utf-8")
    assert report_json.load(path.read_bytes()) == report
