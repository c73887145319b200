"""What the machine's disks and network interfaces move: physical ones only, so that nothing counts twice."""

from typing import NamedTuple

from profilerkit.capture.proc_files import ProcFile, ProcFiles, number
from profilerkit.capture.rates import Growth, rounded, whole

#: Units of ``/sys/block/*/stat``, whatever the disk's own sectors are (Documentation/block/stat.rst in Linux).
_SECTOR_BYTES = 512
#: More than a training machine has; what is beyond them is not read.
_MOST = 16


class TrafficReading(NamedTuple):
    """What was moved per second since the reading before; ``None`` is not measured."""

    disk_read_bytes_per_s: int | None
    disk_write_bytes_per_s: int | None
    disk_busy_ratio: float | None
    net_rx_bytes_per_s: int | None
    net_tx_bytes_per_s: int | None


class Traffic:
    """The disks of the machine and the interfaces of this network namespace."""

    def __init__(self, files: ProcFiles) -> None:
        disks = _physical(files, "sys/block")[:_MOST]
        self._disks = [(files.open(f"sys/block/{name}/stat"), Growth()) for name in disks]
        names = [name for name in files.names("sys/class/net") if name != "lo"]
        # In a container no interface is physical, and none counts twice.
        names = _physical(files, "sys/class/net") or names
        self._received, self._sent = (
            [files.open(f"sys/class/net/{name}/statistics/{way}_bytes") for name in names[:_MOST]]
            for way in ("rx", "tx")
        )
        self._read, self._written, self._rx, self._tx = Growth(), Growth(), Growth(), Growth()

    def read(self, now_ns: int) -> TrafficReading:
        """The present rates."""
        read = written = None
        busy: list[float] = []
        for file, busy_time in self._disks:
            # Fields: reads, merged, sectors, ms; the same of writes; in flight, ms in which any was, ...
            words = file.text().split()
            if len(words) < 10:
                continue
            read = (read or 0) + int(words[2]) * _SECTOR_BYTES
            written = (written or 0) + int(words[6]) * _SECTOR_BYTES
            ratio = busy_time.ratio(int(words[9]) * 1_000_000, now_ns)
            if ratio is not None:
                busy.append(ratio)
        return TrafficReading(
            disk_read_bytes_per_s=whole(self._read.per_s(read, now_ns)),
            disk_write_bytes_per_s=whole(self._written.per_s(written, now_ns)),
            disk_busy_ratio=rounded(max(busy)) if busy else None,
            net_rx_bytes_per_s=whole(self._rx.per_s(_sum(self._received), now_ns)),
            net_tx_bytes_per_s=whole(self._tx.per_s(_sum(self._sent), now_ns)),
        )


def _physical(files: ProcFiles, directory: str) -> list[str]:
    """Names of those in ``directory`` that are a device, not made of others by software."""
    return [name for name in files.names(directory) if (files.root / directory / name / "device").exists()]


def _sum(files: list[ProcFile]) -> int | None:
    """The sum of files that are numbers; ``None`` when none can be read."""
    values = [value for file in files if (value := number(file.text())) is not None]
    return sum(values) if values else None
