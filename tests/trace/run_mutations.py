"""Run directories and summaries of ranks, damage to their files, and what must hold of what is read of them."""

import copy
import json
import random
import struct
import sys
import tempfile
import zlib
from pathlib import Path

import msgspec
from damage import check_report, damaged, refused

import profilerkit
from profilerkit.formats.jobs import Reading
from profilerkit.model import revise
from profilerkit.model.communication import DistributedModel
from profilerkit.model.memory import OutOfMemory
from profilerkit.rundir.documents import DdpRecord
from profilerkit.rundir.layout import EVENT, FORMAT_VERSION, HEADER, WORKER, WORKER_MAGIC
from profilerkit.rundir.process import ClockAnchor
from profilerkit.rundir.reader import read_run
from profilerkit.rundir.sampled import AllocatorSample, GpuSample, HostSample, Sample
from profilerkit.summaries.files import open_summary, place_of, summarise_into

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.recipes import Log, flight, training, worker_batch, write_run

_TOKENS = [b"-1", b"1e308", b"99999999999999999999", b"null", b"[]", b"\0", b'"', b"NaN", b"-9223372036854775808"]
_CODES = b'0123456789-.,:{}[]"\n\xff\0eE'
_STRANGE = (
    None,
    True,
    -1,
    0,
    1,
    1 << 31,
    1 << 62,
    (1 << 63) - 1,
    -(1 << 63),
    1e300,
    -1.5,
    "",
    "<b>",
    [],
    {},
    [0],
    1e-9,
)
_WORDS = tuple(struct.pack("<q", value) for value in (0, -1, 1, 1 << 40, (1 << 63) - 1, -(1 << 63)))
_EXTREMES = (0, -1, 1, 1 << 31, (1 << 63) - 1, -(1 << 63))
#: A report is made of one of so many runs and summaries.
_ANALYZED_EACH = 5


def originals(_path=None):
    """A run of two ranks with everything that a recording can leave: its files by name, and those to be written."""
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory) / "run"
        logs = [Log(), Log()]
        for number in range(24):
            for log in logs:
                start = log.step(1_000, wait=400, wait_cpu=300, phase=("checkpoint", 50) if number == 9 else None)
                log.queue(start, 7, number)
        trace = training(4, kernels=3, rank=0, world_size=2)
        write_run(run, logs, traces={0: trace}, samples=[_sample(second) for second in range(4)])
        first = run / "rank_00000"
        (first / "worker.7.0.bin").write_bytes(
            HEADER.pack(WORKER_MAGIC, FORMAT_VERSION, WORKER.size)
            + b"".join(worker_batch(number * 1_000, number, samples=(500, 400, 0)) for number in range(24))
        )
        anchors = [ClockAnchor(perf_ns=at, unix_ns=10**18 + at, width_ns=50) for at in (0, 10**7)]
        _write(first / "clock.jsonl", *anchors)
        _write(first / "flight.json", flight(range(0, 20_000, 1_000)))
        model = DistributedModel(
            module="Net", backend="nccl", world_size=2, bucket_bytes=(1 << 20,), comm_ns=10, overlap_ns=5
        )
        _write(first / "ddp.json", DdpRecord(models=(model,)))
        _write(first / "oom.json", OutOfMemory(device="cuda:0", message="out of memory", live=(), largest=()))
        files = {str(file.relative_to(run)): file.read_bytes() for file in sorted(run.rglob("*")) if file.is_file()}
        return files, set(files)


def _sample(second):
    gpu = GpuSample(utilization_ratio=0.9, power_mw=300_000, sm_clock_mhz=1_400, temperature_c=60)
    host = HostSample(cpu_ratio=0.5, memory_used_bytes=1 << 30, memory_total_bytes=1 << 34)
    memory = AllocatorSample(allocated_bytes=1 << 20, reserved_bytes=1 << 22)
    return Sample(t_ns=second * 5_000_000, gpu=gpu, host=host, allocator=memory)


def _write(path, *documents):
    path.write_bytes(b"\n".join([*map(msgspec.json.encode, documents), b""]))


def run_seed(originals, seed, path):
    """A run of which one to three files are damaged: read or refused, and no rule breaks on it."""
    rng = random.Random(seed)
    files, unwritten = originals
    run = path.parent / "run"
    hurt = set(rng.choices(sorted(files), k=rng.choice([1, 1, 3])))
    for name in sorted(hurt | unwritten):
        file = run / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(_changed(files[name], rng) if name in hurt else files[name])
        if name in hurt and rng.random() < 0.1:
            file.unlink()
    # Files are slow to write: what is whole stays for the next seed.
    unwritten.clear()
    unwritten.update(hurt)
    with refused():
        if seed % _ANALYZED_EACH:
            read_run(run)
        else:
            check_report(profilerkit.analyze(run))


def _changed(data, rng):
    if rng.random() < 0.4:
        return damaged(data, rng, _TOKENS, _CODES)
    if data[:1] == b"{":
        return b"\n".join(_revalued(line, rng) for line in data.split(b"\n"))
    text, size = bytearray(data), EVENT.size
    for _ in range(rng.choice([1, 4, 40])):
        at = HEADER.size + rng.randrange(max((len(text) - HEADER.size) // size, 1)) * size + rng.choice([0, 8, 16, 24])
        text[at : at + 8] = struct.pack("<q", rng.choice([*_EXTREMES, rng.randrange(1 << 40)]))
    return bytes(text)


def _revalued(line, rng):
    """A line of JSON in which some values, however deep, are others."""
    try:
        document = json.loads(line)
    except ValueError:
        return line
    for _ in range(rng.choice([1, 1, 5])):
        _replace(document, rng)
    return json.dumps(document).encode()


def _replace(document, rng):
    """Put a strange value, or bytes, into the place of one, however deep it lies."""
    held = document
    while isinstance(held, dict | list) and held:
        key = rng.choice(sorted(held) if isinstance(held, dict) else range(len(held)))
        inner = held[key]
        if isinstance(inner, bytes) and rng.random() < 0.8:
            held[key] = damaged(inner, rng, _WORDS, bytes(range(256)))
            return
        if not isinstance(inner, dict | list) or rng.random() < 0.3:
            held[key] = copy.copy(rng.choice(_STRANGE))
            return
        held = inner


def summary_originals(_path=None):
    """The summaries of two ranks: the whole file, its header, and what is packed in it."""
    found = []
    with tempfile.TemporaryDirectory() as directory:
        for rank in range(2):
            trace = Path(directory) / f"rank{rank}.json"
            training(4, kernels=3, comm=50 + rank, rank=rank, world_size=2).write(trace)
            place = place_of(trace, None)
            summarise_into(trace, place, Reading())
            data, summary = place.read_bytes(), open_summary(place)
            records = (data[summary.outline_at : summary.details_at], data[summary.details_at :])
            found.append((data, summary.header, [zlib.decompress(record) for record in records]))
    return found


def run_summary_seed(summaries, seed, path):
    """The summaries of two ranks, one damaged as a whole or in what is packed in it: read, refused or left out."""
    rng = random.Random(seed)
    (data, header, records), (other, *_) = summaries
    data = _repacked(header, records, rng) if rng.random() < 0.7 else damaged(data, rng, _TOKENS, _CODES)
    hurt = path.with_name("rank0.pksum")
    hurt.write_bytes(data)
    path.with_name("rank1.pksum").write_bytes(other)
    with refused():
        found = open_summary(hurt)
        found.outline()
        found.details()
    if not seed % _ANALYZED_EACH:
        with refused():
            check_report(profilerkit.reduce(path.parent))


def _repacked(header, records, rng):
    """A summary that is sound as a file, of records in which bytes or values are others."""
    hurt = rng.randrange(2)
    records = [_reworded(record, rng) if place == hurt else record for place, record in enumerate(records)]
    outline, details = map(zlib.compress, records)
    said = msgspec.msgpack.encode(revise(header, outline_bytes=len(outline)))
    return b"PKSUM1\n" + len(said).to_bytes(4, "little") + said + outline + details


def _reworded(record, rng):
    if rng.random() < 0.4:
        return damaged(record, rng, _TOKENS, bytes(range(256)))
    document = msgspec.msgpack.decode(record)
    for _ in range(rng.choice([1, 1, 5])):
        _replace(document, rng)
    return msgspec.msgpack.encode(document)
