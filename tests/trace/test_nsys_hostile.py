"""Exports from a stranger: nothing in them is run, nothing hangs, and what is whole is read."""

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from nsys_exports import KERNEL, MEMCPY, MS, NVTX, RUNTIME, SCHEMA, Export, training

from profilerkit.analysis.trace_facts import trace_facts
from profilerkit.errors import UnreadableInputError
from profilerkit.formats.nsys import database
from profilerkit.formats.registry import read_trace
from profilerkit.trace.columns import Category

SHARED = sorted((Path(__file__).resolve().parents[3] / "shared" / "traces").glob("nsys_*/*.sqlite"))
#: Rows without end.
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"


def kernels(columns):
    return int(np.count_nonzero(columns.category == Category.KERNEL))


@pytest.mark.parametrize("table", ["StringIds", NVTX, RUNTIME, "TARGET_INFO_GPU"])
def test_a_view_in_place_of_a_table_is_no_table(tmp_path, table):
    export = training(2)
    del export.tables[table]
    names = ", ".join(f'i AS "{column.split()[0]}"' for column in SCHEMA[table].split(", "))
    view = f"CREATE VIEW {table} AS {ENDLESS} {names} FROM n"
    assert kernels(read_trace(export.write(tmp_path / "a.sqlite", after=[view]))) == 16


def test_a_view_that_calls_itself_a_table_is_no_table(tmp_path):
    export = training(2)
    del export.tables["StringIds"]
    disguise = [
        f"CREATE VIEW StringIds AS {ENDLESS} i AS id, 'x' AS value FROM n",
        "PRAGMA writable_schema=ON",
        "UPDATE sqlite_master SET type = 'table' WHERE name = 'StringIds'",
    ]
    columns = read_trace(export.write(tmp_path / "a.sqlite", after=disguise))
    assert kernels(columns) == 16
    assert "x" not in columns.strings


def test_a_virtual_table_is_no_table(tmp_path):
    export = training(2)
    del export.tables["StringIds"]
    try:
        export.write(tmp_path / "a.sqlite", after=["CREATE VIRTUAL TABLE StringIds USING fts5(id, value)"])
    except sqlite3.OperationalError as error:
        pytest.skip(f"SQLite was built without full-text search: {error}")
    columns = read_trace(tmp_path / "a.sqlite")
    assert kernels(columns) == 16
    assert "(unnamed)" in columns.strings


def test_columns_that_are_computed_are_not_asked_for(tmp_path):
    export = training(2)
    del export.tables["StringIds"]
    table = "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT AS ('computed'))"
    path = export.write(tmp_path / "a.sqlite", after=[table, "INSERT INTO StringIds (id) VALUES (1), (2), (3)"])
    columns = read_trace(path)
    assert kernels(columns) == 16
    assert "computed" not in columns.strings


def test_an_index_is_not_used(tmp_path):
    index = f'CREATE INDEX everything ON {KERNEL} ("start", "end", abs("streamId" * -1))'
    path = training(2).write(tmp_path / "a.sqlite", after=[index])
    with closing(sqlite3.connect(path)) as connection:
        root = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'everything'").fetchone()[0]
    content = bytearray(path.read_bytes())
    content[(root - 1) * 4096 : root * 4096] = bytes(4096)
    path.write_bytes(content)
    columns = read_trace(path)
    assert kernels(columns) == 16
    assert not columns.damage.truncated


ODD = ["text", "0x10", "", None, 3.5, -1e300, b"\x00\xff", 2**63 - 1, -(2**63), float("inf")]


@pytest.mark.parametrize("table", [KERNEL, MEMCPY, RUNTIME, NVTX, "StringIds", "TARGET_INFO_GPU"])
def test_values_of_any_type_stand_anywhere(tmp_path, table):
    schema = {table: text.replace(" NOT NULL", "").replace(" INTEGER", "") for table, text in SCHEMA.items()}
    schema = {table: text.replace(" PRIMARY KEY", "") for table, text in schema.items()}
    export = training(3)
    row = export.tables[table][0]
    export.tables[table] += [{**row, column.split()[0]: odd} for column in schema[table].split(", ") for odd in ODD]
    columns = read_trace(export.write(tmp_path / "a.sqlite", schema=schema))
    assert kernels(columns) >= 24
    trace_facts(columns)


def test_texts_that_are_no_utf_8_are_read(tmp_path):
    bad = f"INSERT INTO {NVTX} VALUES (5, 6, 59, NULL, CAST(x'ff41fe' AS TEXT), NULL, NULL, NULL, NULL)"
    columns = read_trace(training(2).write(tmp_path / "a.sqlite", after=[bad]))
    assert "\ufffdA\ufffd" in columns.strings


def test_a_database_in_utf_16_is_read(tmp_path):
    path = training(2).write(tmp_path / "a.sqlite", before=["PRAGMA encoding = 'UTF-16le'"])
    columns = read_trace(path)
    assert "ampere_bf16_gemm<128>" in columns.strings


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 0.9, 0.99])
def test_of_an_export_that_ends_early_the_rest_is_read(tmp_path, share):
    export = training(200, ranges=None)
    whole = export.write(tmp_path / "a.sqlite").read_bytes()
    path = tmp_path / "cut.sqlite"
    path.write_bytes(whole[: int(len(whole) * share)])
    columns = read_trace(path)
    assert columns.damage.truncated
    assert columns.damage.notes[0] == "the file ends early"
    assert 0 < len(columns) <= len(read_trace(tmp_path / "a.sqlite"))
    with pytest.raises(UnreadableInputError, match="damaged"):
        read_trace(path, strict=True)


def test_a_damaged_page_costs_the_rest_of_its_table_only(tmp_path):
    path = training(200, ranges=None).write(tmp_path / "a.sqlite")
    whole = read_trace(path)
    content = path.read_bytes()
    outcomes = set()
    for page in range(1, len(content) // 4096):
        damaged = content[: page * 4096] + b"\x55" * 4096 + content[(page + 1) * 4096 :]
        path.write_bytes(damaged)
        columns = read_trace(path)
        assert columns.damage.truncated == (len(columns) < len(whole) or bool(columns.damage.notes[:-2]))
        outcomes.add(len(columns) < len(whole))
    assert outcomes == {True, False}


def test_more_rows_than_the_file_can_hold_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "_ROW_BYTES", 4096)
    monkeypatch.setattr(database, "_ROWS_AT_ONCE", 5)
    columns = read_trace(training(20).write(tmp_path / "a.sqlite"))
    assert 0 < kernels(columns) < 160
    assert any("shows more than the file can hold" in note for note in columns.damage.notes)


def test_tables_that_share_their_pages_show_no_more_than_the_file_can_hold(tmp_path, monkeypatch):
    """Every table of events points at the rows of the kernels."""
    path = training(100).write(tmp_path / "a.sqlite")
    alone = kernels(read_trace(path))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA writable_schema=ON")
        connection.execute(
            "UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master WHERE name = ?) "
            "WHERE name LIKE 'CUPTI%' OR name = ?",
            (KERNEL, NVTX),
        )
        connection.commit()
    crossed = read_trace(path)  # of which process what is, is any guess
    assert not any("can hold" in note for note in crossed.damage.notes)  # 60 bytes a row, and five tables
    monkeypatch.setattr(database, "_ROW_BYTES", path.stat().st_size // (2 * alone))
    columns = read_trace(path)
    assert 0 < len(columns) <= min(2 * alone, len(crossed))
    assert sum("shows more than the file can hold" in note for note in columns.damage.notes) == 1


def test_reading_that_takes_too_long_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "_LONGEST_S", -1e9)
    monkeypatch.setattr(database, "_CHECK_EVERY", 1)
    with pytest.raises(UnreadableInputError, match="cannot be read") as caught:
        read_trace(training(200).write(tmp_path / "a.sqlite"))
    assert "interrupted" in caught.value.cause


def test_a_text_longer_than_is_believed_costs_its_table_only(tmp_path):
    export = training(2)
    export.string("a" * (17 * 1024 * 1024))
    columns = read_trace(export.write(tmp_path / "a.sqlite"))
    assert kernels(columns) == 16
    assert any("StringIds is damaged" in note for note in columns.damage.notes)


def test_pages_that_point_at_each_other_do_not_hang(tmp_path):
    """All pages that point at others point at one that holds rows, or at themselves."""
    path = training(400).write(tmp_path / "a.sqlite")
    content = bytearray(path.read_bytes())
    for page in range(1, len(content) // 4096):
        begun = page * 4096
        if content[begun] != 0x05:
            continue
        for cell in range(int.from_bytes(content[begun + 3 : begun + 5], "big")):
            at = begun + int.from_bytes(content[begun + 12 + 2 * cell : begun + 14 + 2 * cell], "big")
            content[at : at + 4] = (page + 1).to_bytes(4, "big")
    path.write_bytes(content)
    try:
        columns = read_trace(path)
    except UnreadableInputError:
        return
    assert len(columns) <= len(content)


def test_many_wordings_with_numbers_are_no_steps_and_do_not_hang(tmp_path):
    export = Export().gpu()
    for number in range(300):
        begun = (number + 1) * MS
        export.range(f"{'x' * (number % 150)} step {number}", begun, begun + MS // 2)
        export.launch("gemm", begun + 1_000, begun + 20_000, begun + MS // 2)
    assert trace_facts(read_trace(export.write(tmp_path / "a.sqlite"))).steps.found_by == "the whole trace"
