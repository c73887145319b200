"""XPlane, the profile that JAX and TensorFlow write (``*.xplane.pb``), plain or gzip; without a protobuf library."""

from pathlib import Path

from profilerkit.trace.columns import ANALYZED, TraceColumns, Wanted

name = "xplane"
# Beside a profile lies the same as JSON, of which a part may be left out.
suffixes = (".xplane.pb", ".xplane.pb.gz")
# Any message of protocol buffers: a profile that was renamed, or a model.
shared_suffixes = (".pb", ".pb.gz")


def sniff(head: bytes) -> bool:
    """Return whether a file that begins like this is an XSpace."""
    from profilerkit.formats.xspace import is_xspace

    return is_xspace(head)


def read(path: Path, *, wanted: Wanted = ANALYZED, strict: bool = False) -> TraceColumns:
    """Return the steps and the work of the device that worked most; what could not be read is counted in ``damage``.

    Picoseconds are cut to the nanosecond below: events that meet still meet, and a duration is off by less than 1 ns.
    Raises ``UnreadableInputError`` for a file without work of a device, and with ``strict`` for a damaged one.
    """
    from profilerkit.formats.xla import columns_of

    return columns_of(path, strict=strict)
