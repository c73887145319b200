"""The collectives of one trace as a few arrays: what is left of them once the events are gone."""

import re
from collections.abc import Sequence

import msgspec
import numpy as np

from profilerkit.analysis.communication.registry import MOST_BYTES, SEND_RECV, UNKNOWN, Registry, built_in
from profilerkit.analysis.device.formulas import BY_NAME, Arguments, parsed
from profilerkit.analysis.device.kernels import named
from profilerkit.analysis.enclosing import innermost_at
from profilerkit.trace.columns import I8, I32, I64, Bools, Category, CollectiveArgs, TraceColumns

#: Every collective the table knows, and ``unknown`` at the end; arrays hold positions in it.
KINDS = (*(kind for kind, _ in built_in().kinds), UNKNOWN)
_KIND = {kind: index for index, kind in enumerate(KINDS)}
#: In the name of the kernel that NCCL and RCCL run transfers between two ranks with, and all-to-all too.
_EITHER = "sendrecv"
#: Annotations that back-ends put around the collectives they run: ``nccl:all_to_all``, ``gloo:all_reduce``.
_ANNOTATED = re.compile(r"^(?:[nrhx]ccl|gloo|ucc|mpi):")
#: Operators that start a collective, and one that holds its arguments.
_STARTS, _STARTS_OR_TELLS = re.compile(r"^c10d::"), re.compile(r"^(?:c10d::|record_param_comms$)")


class Channel(msgspec.Struct, frozen=True):
    """What orders collectives: those of one process group run one after the other, in the same order on every member.

    Without a ``group`` the ``order`` is the place of the stream; transfers are in order for each sender and receiver.
    """

    group: str
    order: int
    pair: tuple[int, int] | None = None


class CollectiveLog(msgspec.Struct, frozen=True):
    """Collectives and point-to-point transfers of one trace by start; arrays are ``(n,)``; names are hostile."""

    start: I64  #: ns on the trace's own clock
    end: I64
    name: I32  #: ids into ``names``: the event's own name
    kind: I8  #: positions in ``KINDS``
    title: I32  #: ids into ``names``: the collective's name in the metadata, else the event's
    dtype: I32
    channel: I32
    sequence: I64  #: number within the process group, -1 where the trace does not say
    bytes: I64  #: -1 where unknown
    measured: Bools  #: whether the bytes come from the metadata rather than from an operator's shapes
    size: I32  #: members of the group, -1 where unknown
    names: tuple[str, ...]
    channels: tuple[Channel, ...]
    on_host: bool  #: whether these run on the host, whose load blurs when they end

    def __len__(self) -> int:
        return len(self.start)

    def is_a(self, *wanted: str) -> Bools:
        """``(n,)`` mask of the collectives of any of these kinds."""
        mask: Bools = np.isin(self.kind, [_KIND[kind] for kind in wanted])
        return mask

    @property
    def joint(self) -> Bools:
        """``(n,)`` mask of what all members take part in: everything but point-to-point transfers."""
        return ~self.is_a(SEND_RECV)


def labels(names: Sequence[str], name: I32, size: I64, known: dict[tuple[str, int], int]) -> I64:
    """``(n,)`` numbers of what must be equal on all members, the name and the size; ``known`` grows."""
    pairs, which = np.unique(np.stack([name, size]), axis=1, return_inverse=True)
    ids = [known.setdefault((names[of], moved), len(known)) for of, moved in pairs.T.tolist()]
    return np.array(ids, dtype=np.int64)[which.ravel()]


def collective_log(
    columns: TraceColumns, communicates: Bools, launches: I64, registry: Registry, *, device: Bools | None
) -> CollectiveLog | None:
    """The collectives of a trace; ``None`` when none was seen."""
    rows = _rows(columns, communicates, device)
    if not len(rows):
        return None
    rows = rows[np.lexsort((columns.end_ns[rows], columns.ts_ns[rows]))]
    metadata = {args.row: args for args in columns.collectives}
    args = [metadata.get(row) for row in rows.tolist()]
    kind = _kinds(columns, rows, args, launches, registry)
    size = _numbers([None if found is None else found.group_size for found in args])
    moved, dtypes, measured = _moved(columns, rows, args, launches, kind, size)
    names: dict[str, int] = {}

    def ids(texts: Sequence[str | None]) -> I32:
        return np.array([-1 if text is None else names.setdefault(text, len(names)) for text in texts], np.int32)

    own = [columns.strings[index] for index in columns.name[rows].tolist()]
    titles = [text if found is None else found.name for text, found in zip(own, args, strict=True)]
    channel, channels = _channels(columns, rows, args, kind == _KIND[SEND_RECV])
    return CollectiveLog(
        start=columns.ts_ns[rows],
        end=columns.end_ns[rows],
        name=ids(own),
        kind=kind,
        title=ids(titles),
        dtype=ids(dtypes),
        channel=channel,
        sequence=_numbers([None if found is None else found.sequence for found in args]),
        bytes=moved,
        measured=measured,
        size=np.clip(size, -1, np.iinfo(np.int32).max).astype(np.int32),
        names=tuple(names),
        channels=channels,
        on_host=device is None,
    )


def _numbers(values: Sequence[int | None]) -> I64:
    most = np.iinfo(np.int64).max
    return np.array([-1 if value is None else min(value, most) for value in values], dtype=np.int64)


def _rows(columns: TraceColumns, communicates: Bools, device: Bools | None) -> I64:
    """Communication kernels; without a device the transfers, or where none is shown the operators that start them."""
    found = communicates[columns.name] & (columns.dur_ns > 0)
    if device is not None:
        return np.flatnonzero(found & device & (columns.category == Category.KERNEL))
    found &= columns.is_a(Category.ANNOTATION, Category.CPU_OP)
    transfers = found & ~named(columns, _STARTS, Category.ANNOTATION, Category.CPU_OP)
    return np.flatnonzero(transfers if transfers.any() else found)


def _kinds(
    columns: TraceColumns, rows: I64, args: Sequence[CollectiveArgs | None], launches: I64, registry: Registry
) -> I8:
    """What each row is: by its metadata, else by the annotation around its launch, else by its name.

    A kernel's name is the weakest witness: NCCL runs all-to-all as ``SendRecv`` and several kinds as ``Generic``. So a
    kernel whose launch is not in the trace is what all the others of its name are.
    """
    unknown = _KIND[UNKNOWN]
    by_name = np.full(len(columns.strings), unknown, dtype=np.int8)
    used = np.unique(columns.name[rows]).tolist()
    by_name[used] = [_KIND[registry.kind(columns.strings[index])] for index in used]
    # A kernel ``SendRecv`` may be all-to-all as well.
    either = [index for index in used if _EITHER in columns.strings[index].lower()]
    by_name[either] = np.where(by_name[either] == _KIND[SEND_RECV], unknown, by_name[either])
    told = np.array([unknown if found is None else _KIND[registry.kind(found.name)] for found in args], dtype=np.int8)
    annotated = _annotation_kinds(columns, launches[rows], registry)
    told = np.where(told == unknown, annotated, told)
    name, said = columns.name[rows], told != unknown
    least, most = np.full(len(columns.strings), unknown), np.full(len(columns.strings), -1)
    np.minimum.at(least, name[said], told[said])
    np.maximum.at(most, name[said], told[said])
    others = np.where(most < 0, by_name, np.where(least == most, most, unknown))
    return np.where(said, told, others[name]).astype(np.int8)


def _annotation_kinds(columns: TraceColumns, calls: I64, registry: Registry) -> I8:
    """The kind in the annotation that each launch call lies in, ``unknown`` where it lies in none."""
    out = np.full(len(calls), _KIND[UNKNOWN], dtype=np.int8)
    spans = np.flatnonzero(named(columns, _ANNOTATED, Category.ANNOTATION))
    linked = np.flatnonzero(calls >= 0)
    calls = calls[linked]
    found = innermost_at(columns, spans, columns.thread[calls], columns.ts_ns[calls])
    names = columns.name[found[found >= 0]]
    kind = {index: _KIND[registry.kind(columns.strings[index])] for index in np.unique(names).tolist()}
    out[linked[found >= 0]] = [kind[index] for index in names.tolist()]
    return out


def _moved(
    columns: TraceColumns, rows: I64, args: Sequence[CollectiveArgs | None], launches: I64, kind: I8, size: I64
) -> tuple[I64, list[str | None], Bools]:
    """Bytes of each row (-1 unknown), its type, and whether the metadata said so; else its operator's shapes do."""
    said = [None if found is None else payload_bytes(found) for found in args]
    moved = _numbers(said)
    dtypes = [None if found is None else found.dtype for found in args]
    measured = moved >= 0
    shapes = _operator_shapes(columns, rows[~measured], launches)
    for index in np.flatnonzero(~measured).tolist():
        shape = shapes.get(int(rows[index]))
        if shape is None:
            continue
        dtypes[index] = dtypes[index] or shape[0]
        # The operator's first tensor is what this rank puts in; an all-gather counts what comes out.
        gathers = KINDS[kind[index]] == "all_gather"
        if not gathers or size[index] > 0:
            moved[index] = min(shape[1] * (int(size[index]) if gathers else 1), MOST_BYTES)
    return moved, dtypes, measured


def _operator_shapes(columns: TraceColumns, rows: I64, launches: I64) -> dict[int, tuple[str, int]]:
    """Row to the shape of the operator behind it: its own, or that of the operator with the same external id."""
    own = shapes_of(columns, rows)
    rows = np.array([row for row in rows.tolist() if row not in own], dtype=np.int64)
    calls = launches[rows]
    external = np.where(columns.external_id[rows] >= 0, columns.external_id[rows], columns.external_id[calls])
    external = np.where((columns.external_id[rows] < 0) & (calls < 0), -1, external)
    starts = named(columns, _STARTS_OR_TELLS, Category.CPU_OP)
    operators = np.flatnonzero(starts & (columns.external_id >= 0))
    if not len(operators) or not len(rows):
        return own
    operators = operators[np.argsort(columns.external_id[operators], kind="stable")]
    at = np.minimum(np.searchsorted(columns.external_id[operators], external), len(operators) - 1)
    found = np.where(columns.external_id[operators[at]] == external, operators[at], -1)
    shapes = shapes_of(columns, found)
    linked = zip(rows.tolist(), found.tolist(), strict=True)
    return own | {row: shapes[operator] for row, operator in linked if operator in shapes}


def _channels(
    columns: TraceColumns, rows: I64, args: Sequence[CollectiveArgs | None], transfers: Bools
) -> tuple[I32, tuple[Channel, ...]]:
    """The channel of each row: its process group, and of ``transfers`` its pair of ranks; else its stream.

    A kernel without metadata on a stream that serves one named group belongs to that group: it was launched before.
    """
    streams, stream = np.unique(columns.stream[rows], return_inverse=True)
    groups = [None if found is None else found.group_name for found in args]
    served: list[set[str]] = [set() for _ in streams]
    for group, order in zip(groups, stream.tolist(), strict=True):
        if group:
            served[order].add(group)
    alone = [next(iter(named)) if len(named) == 1 else None for named in served]
    found: dict[Channel, int] = {}
    ids = []
    for group, order, told, is_transfer in zip(groups, stream.tolist(), args, transfers.tolist(), strict=True):
        name = group or alone[order]
        channel = Channel(name, 0) if name else Channel("", order)
        if is_transfer and name and told is not None:
            channel = Channel(name, 0, _pair(told, columns.meta.rank))
        ids.append(found.setdefault(channel, len(found)))
    return np.array(ids, dtype=np.int32), tuple(found)


def _pair(args: CollectiveArgs, own: int | None) -> tuple[int, int] | None:
    """Who sends to whom; ``None`` where the trace does not say. Each side names the other alone."""
    source = args.source if args.source is not None or args.target is None else own
    target = args.target if args.target is not None or args.source is None else own
    return None if source is None or target is None else (source, target)


def payload_bytes(args: CollectiveArgs) -> int | None:
    """Bytes a collective moves: the larger of its sides; ``None`` when the metadata does not say.

    All-gather counts its output, reduce-scatter its input, the others have two sides alike (nccl-tests' convention).
    """
    found = BY_NAME.get(args.dtype or "")
    elements = max(args.in_elements or 0, args.out_elements or 0)
    return min(found.bytes * elements, MOST_BYTES) if found and elements else None


def shapes_of(columns: TraceColumns, rows: I64) -> dict[int, tuple[str, int]]:
    """Row to the type and bytes of the first tensor of its operator, where its shapes can be understood."""
    known = rows[(rows >= 0) & (columns.input_dims[rows] >= 0) & (columns.input_types[rows] >= 0)]
    pairs, which = np.unique(
        np.stack([columns.input_dims[known], columns.input_types[known]], axis=1), axis=0, return_inverse=True
    )
    texts = ((columns.strings[dims], columns.strings[types], "") for dims, types in pairs.tolist())
    found = [_first_tensor(passed) for passed in parsed(texts)]
    sized = zip(known.tolist(), which.ravel().tolist(), strict=True)
    return {row: shape for row, index in sized if (shape := found[index]) is not None}


def _first_tensor(passed: Arguments | None) -> tuple[str, int] | None:
    """The first tensor of what was passed; ``None`` if there is none, or nothing in it.

    >>> from profilerkit.analysis.device.formulas import arguments
    >>> _first_tensor(arguments("[[321271], []]", '["float", ""]', ""))
    ('Float', 1285084)
    """
    first = next((tensor for tensor in passed.tensors if tensor), None) if passed else None
    if first is None or first.type is None or not first.elements:
        return None
    return first.type.name, first.elements * first.type.bytes
