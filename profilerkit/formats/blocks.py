"""Any file, gzip or not, into a stream of plain blocks."""

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import msgspec
from isal import isal_zlib

from profilerkit.errors import UnreadableInputError
from profilerkit.formats.limits import FREE_INFLATED_BYTES, INFLATION_RATIO
from profilerkit.rundir.files import open_regular
from profilerkit.units import format_bytes

# Decoded events fall out of the L2 cache above 256 KiB: 16 MiB blocks decode 1.6 times slower.
BLOCK_BYTES = 256 * 1024
# One compressed feed; traces compress 11:1 to 19:1, so it inflates to about one block.
FEED_BYTES = 16 * 1024

# Members of a compressed file may hold a byte each, and every block has its price whatever its size.
_SMALLEST_SHARE = 8

# Enough to see the first keys of a document, device properties of many devices included.
SNIFFED_BYTES = 256 * 1024

GZIP_MAGIC = b"\x1f\x8b"
GZIP_WBITS = 31

_IGZIP_ERROR = cast(type[Exception], isal_zlib.error)


class BlockSource(msgspec.Struct):
    """Reads a file block by block; whether it is gzip is decided by its first bytes, never by its name.

    Attributes:
        truncated: True once compressed data turned out to end early or to be damaged.
        notes: what was wrong with the container, one sentence each.
    """

    path: Path
    truncated: bool = False
    notes: list[str] = msgspec.field(default_factory=list)
    _inflated_bytes: int = 0

    def blocks(self) -> Iterator[bytes]:
        """Yield the plain bytes in order; everything before a damaged spot is yielded first.

        Raises:
            OSError: the file cannot be opened or read, or is no regular file.
        """
        with open_regular(self.path, named=True) as file:
            magic = file.read(len(GZIP_MAGIC))
            file.seek(0)
            if magic == GZIP_MAGIC:
                yield from _joined(self._inflated(file))
                return
            while block := file.read(BLOCK_BYTES):
                yield block

    def beginning(self) -> bytes:
        """Return the beginning of the plain bytes, in which the format shows; empty when there are none.

        Raises:
            OSError: the file cannot be opened or read.
        """
        head = b""
        for block in self.blocks():
            head += block
            if len(head) >= SNIFFED_BYTES:
                break
        return head

    def _inflated(self, file: IO[bytes]) -> Iterator[bytes]:
        member_start = 0
        feed = file.read(FEED_BYTES)
        while feed:
            inflater: Any = isal_zlib.decompressobj(wbits=GZIP_WBITS)
            yielded_bytes = 0
            while feed and not inflater.eof:
                feed_start = file.tell() - len(feed)
                try:
                    plain = inflater.decompress(feed)
                except _IGZIP_ERROR:
                    yield self._before_damage(file, member_start, feed_start, yielded_bytes)
                    return
                for start in range(0, len(plain), BLOCK_BYTES):
                    yield plain[start : start + BLOCK_BYTES] if len(plain) > BLOCK_BYTES else plain
                yielded_bytes += len(plain)
                self._inflated_bytes += len(plain)
                if self._inflated_bytes > max(FREE_INFLATED_BYTES, INFLATION_RATIO * file.tell()):
                    self.truncated = True
                    self.notes.append(f"more than {INFLATION_RATIO} times its size when inflated, so read no further")
                    return
                if not inflater.eof:
                    feed = file.read(FEED_BYTES)
            if not inflater.eof:
                self.truncated = True
                self.notes.append("the compressed data ends early")
                return
            feed = self._next_member(file, inflater.unused_data)
            member_start = file.tell() - len(feed)

    def _next_member(self, file: IO[bytes], rest: bytes) -> bytes:
        while True:
            rest = rest.lstrip(b"\0")
            if len(rest) >= len(GZIP_MAGIC):
                break
            more = file.read(FEED_BYTES)
            if not more:
                break
            rest += more
        if rest.startswith(GZIP_MAGIC):
            return rest
        if rest:
            self.notes.append("bytes that are not gzip follow the compressed data and were ignored")
        return b""

    def _before_damage(self, file: IO[bytes], member_start: int, feed_start: int, yielded_bytes: int) -> bytes:
        """Return what a member still holds between the bytes already yielded and its damaged spot.

        isal drops the output of a feed that fails: zlib inflates the member again, from that feed on byte by byte.
        """
        file.seek(member_start)
        inflater = zlib.decompressobj(wbits=GZIP_WBITS)
        plain = bytearray()
        passed = 0
        try:
            while feed := file.read(max(1, min(FEED_BYTES, feed_start - file.tell()))):
                plain += inflater.decompress(feed)
                known = min(len(plain), yielded_bytes - passed)
                del plain[:known]
                passed += known
        except zlib.error as error:
            if "incorrect data check" in str(error):
                self.notes.append("the checksum of the compressed data is wrong, so some values may be wrong too")
                return bytes(plain)
        self.truncated = True
        self.notes.append("the compressed data is damaged and was read up to the damaged spot")
        return bytes(plain)


def _joined(pieces: Iterator[bytes]) -> Iterator[bytes]:
    held: list[bytes] = []
    held_bytes = 0
    for piece in pieces:
        held.append(piece)
        held_bytes += len(piece)
        if held_bytes * _SMALLEST_SHARE >= BLOCK_BYTES:
            yield b"".join(held) if len(held) > 1 else piece
            held, held_bytes = [], 0
    if held_bytes:
        yield b"".join(held)


def plain_bytes(path: Path, most_bytes: int = 1 << 30) -> bytes:
    """Return all bytes of a file, unpacked where it is gzip.

    Raises ``UnreadableInputError`` for more than ``most_bytes``, and for damaged data.
    """
    source = BlockSource(path)
    pieces, size = [], 0
    for block in source.blocks():
        size += len(block)
        if size > most_bytes:
            raise UnreadableInputError(
                f"{path} is too large to read as a whole",
                cause=f"it has more than {format_bytes(most_bytes)}",
                hint="record fewer steps",
            )
        pieces.append(block)
    if source.truncated:
        raise UnreadableInputError(f"{path} is damaged", cause=source.notes[0], hint="copy the file again")
    return b"".join(pieces)
