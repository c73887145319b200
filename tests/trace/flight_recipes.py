"""Dumps of flight recorders as torch 2.13 writes them."""

import json
import pickle
import random

from damage import check_report, damaged, refused

from profilerkit.api import analyze
from profilerkit.formats.registry import files_of, read_files

START_NS = 1_795_348_800 * 1_000_000_000
US, MS = 1_000, 1_000_000


_TOKENS = [b"-1", b"1e308", b"99999999999999999999", b"null", b"[]", b"\0", b'"']
#: A report is made of one of so many.
_ANALYZED_EACH = 5
_CODES = b"\x85\x86\x87\x94(.}]seutahj0123456789"


def call(number, at_ns, *, name="gloo:all_reduce", elements=1000, group=("0", "default_pg"), **more):
    """One entry, with the frames that only pickles have."""
    return {
        "frames": [{"name": "step", "filename": "/data/job/train.py", "line": 9}],
        "record_id": number - 1,
        "pg_id": 0,
        "process_group": group,
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": name,
        "time_created_ns": at_ns,
        "input_sizes": [[elements]],
        "input_dtypes": ["Float"],
        "output_sizes": [[elements]],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": True,
        "timeout_ms": 1_800_000,
        "is_p2p": False,
        **more,
    }


def dump(entries, ranks="[0, 1]"):
    return {
        "version": "2.10",
        "pg_config": {"": {"name": "", "desc": "", "ranks": ranks}},
        "comm_lib_version": "",
        "pg_status": {"0": {"last_enqueued_collective": len(entries)}},
        "entries": entries,
    }


def stepping(late_ns=0, *, steps=30, step_ns=100 * MS, buckets=(1000, 500), first=1, start_ns=START_NS, **more):
    """A rank that issues these all-reduces in the middle of each step, ``late_ns`` after the others."""
    entries = []
    for number in range(first - 1, steps * len(buckets)):
        step, bucket = divmod(number, len(buckets))
        at = start_ns + step * step_ns + step_ns // 2 + late_ns + bucket * 100 * US
        entries.append(call(number + 1, at, elements=buckets[bucket], **more))
    return dump(entries)


def as_pickle(document, protocol=2):
    return pickle.dumps(document, protocol=protocol)


def as_json(document):
    return json.dumps(document).encode()


STRANGE = (None, True, -1, 0, 7, 1 << 40, 1 << 62, 1 << 70, 1.5, 1e300, "", "x" * 500, [], [[]], [[0]], {}, ["0", "1"])


def changed(document, rng):
    """The dump with some of its values replaced, entries left out, doubled and moved."""
    entries = [dict(entry) for entry in document["entries"]]
    for _ in range(rng.choice([1, 3, 20, 200])):
        entry = rng.choice(entries)
        entry[rng.choice(sorted(entry))] = rng.choice([*STRANGE, *rng.choice(entries).values()])
    if rng.random() < 0.3:
        entries = rng.choices(entries, k=rng.choice([0, 1, 5, 300]))
    whole = {**document, "entries": entries}
    if rng.random() < 0.2:
        whole[rng.choice(sorted(whole))] = rng.choice(STRANGE)
    return whole


def run_seed(write, seed, path):
    """Two dumps, one or both damaged, which must be read or refused; whatever else is raised breaks a promise."""
    rng = random.Random(seed)
    written = []
    for rank in range(2):
        document = stepping(rank * 20 * MS, steps=12)
        is_hurt, in_bytes = rank > 0 or rng.random() < 0.5, rng.random() < 0.4
        data = write(changed(document, rng) if is_hurt and not in_bytes else document)
        written.append(path.with_name(f"fr_rank_{rank}"))
        written[-1].write_bytes(damaged(data, rng, _TOKENS, _CODES) if is_hurt and in_bytes else data)
    with refused():
        if seed % _ANALYZED_EACH:
            read_files(files_of(written, "dump"), strict=False)
        else:
            check_report(analyze(*written))
