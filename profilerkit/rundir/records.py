"""Records of one size, without those whose times cannot be: sums of such times would overflow in int64 arithmetic."""

from profilerkit.rundir.layout import EVENT, WORKER

#: The highest byte of a little-endian int64 of at most 2^60 ns, 36 years, from zero: clocks count from the machine's
#: start.
_OF_A_TIME = frozenset((*range(0x10), *range(0xF0, 0x100)))
_OF_A_LENGTH = frozenset(range(0x10))
#: Where these bytes are: of the start and the duration of an event, and of the start of a worker's batch.
_IN_EVENT = ((15, _OF_A_TIME), (23, _OF_A_LENGTH))
_IN_BATCH = ((7, _OF_A_TIME),)


def sound_events(events: bytes) -> bytes:
    """Whole records of ``layout.EVENT`` whose times can be true: the same bytes where all can, as is usual.

    >>> far, wrong = EVENT.pack(1, 0, 0, 1 << 62, 5, 0), EVENT.pack(1, 0, 0, 0, -5, 0)
    >>> sound_events(far + EVENT.pack(1, 0, 0, 7, 5, 0) + wrong) == EVENT.pack(1, 0, 0, 7, 5, 0)
    True
    """
    return _sound(events, EVENT.size, _IN_EVENT)


def sound_batches(batches: bytes) -> bytes:
    """Whole records of ``layout.WORKER`` whose times can be true."""
    return _sound(batches, WORKER.size, _IN_BATCH)


def _sound(data: bytes, size: int, bounds: tuple[tuple[int, frozenset[int]], ...]) -> bytes:
    if all(bound.issuperset(data[at::size]) for at, bound in bounds):
        return data
    records = (data[at : at + size] for at in range(0, len(data), size))
    return b"".join(record for record in records if all(record[at] in bound for at, bound in bounds))
