"""The columns of nvidia-smi's logs: their names in its queries, in ``dmon`` and as people rename them, and units."""

import re
from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec

Kind = Literal["ratio", "bytes", "mW", "MHz", "°C", "count", "bits", "flag", "bytes_per_s"]

#: What a name stands for beside a signal: the time of the row and the device it is of.
TIME, DATE, INDEX, UUID, BUS, MODEL = "time", "date", "index", "uuid", "bus", "model"

#: Field of ``GpuSample``, what its numbers are, and the names of its column without units. Dots, blanks and dashes of
#: a name read as "_". The first names are those of ``nvidia-smi --help-query-gpu``; the others are of people's logs.
_SIGNALS: tuple[tuple[str, Kind, str], ...] = (
    ("utilization_ratio", "ratio", "utilization_gpu gpu_utilization gpu_util utilization util"),
    ("memory_utilization_ratio", "ratio", "utilization_memory memory_utilization mem_util"),
    ("memory_used_bytes", "bytes", "memory_used mem_used gpu_memory_used"),
    ("memory_total_bytes", "bytes", "memory_total mem_total gpu_memory_total"),
    ("temperature_c", "°C", "temperature_gpu temperature temp gpu_temperature gpu_temp"),
    ("power_mw", "mW", "power_draw power_draw_average power gpu_power power_usage"),
    ("power_instant_mw", "mW", "power_draw_instant"),
    ("power_limit_mw", "mW", "power_limit enforced_power_limit"),
    ("sm_clock_mhz", "MHz", "clocks_sm clocks_current_sm sm_clock"),
    ("sm_clock_max_mhz", "MHz", "clocks_max_sm"),
    ("memory_clock_mhz", "MHz", "clocks_mem clocks_current_memory clocks_memory mem_clock"),
    ("pcie_generation", "count", "pcie_link_gen_current pcie_link_gen_gpucurrent"),
    ("pcie_width", "count", "pcie_link_width_current"),
    ("ecc_corrected", "count", "ecc_errors_corrected_volatile_total"),
    ("ecc_uncorrected", "count", "ecc_errors_uncorrected_volatile_total"),
    ("throttle_reasons", "bits", "clocks_throttle_reasons_active clocks_event_reasons_active"),
)
#: Reasons for a lower clock that have a column of their own, with their bits (nvml.h, nvmlClocksEventReason*).
_REASONS = {
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}
_DEVICE = {
    TIME: "timestamp time datetime",
    DATE: "date",
    INDEX: "index gpu gpu_index gpu_id gpu_idx",
    UUID: "uuid gpu_uuid",
    BUS: "pci_bus_id gpu_bus_id pci_bus",
    MODEL: "name gpu_name",
}
#: Columns of ``nvidia-smi dmon`` and ``dcgmi dmon``, whose short names mean something else in a query: ``mem`` is how
#: busy the memory is.
_DMON: dict[str, tuple[str, Kind | None]] = {
    "pwr": ("power_mw", "mW"),
    "gtemp": ("temperature_c", "°C"),
    "temp": ("temperature_c", "°C"),
    "sm": ("utilization_ratio", "ratio"),
    "mem": ("memory_utilization_ratio", "ratio"),
    "mclk": ("memory_clock_mhz", "MHz"),
    "pclk": ("sm_clock_mhz", "MHz"),
    "pviol": ("power_throttle_ratio", "ratio"),
    "tviol": ("sw_thermal_throttle_ratio", "flag"),
    "fb": ("memory_used_bytes", "bytes"),
    "rxpci": ("pcie_rx_bytes_per_s", "bytes_per_s"),
    "txpci": ("pcie_tx_bytes_per_s", "bytes_per_s"),
    # ``dcgmi dmon``, by the short names of DCGM's fields (dcgm_fields.cpp); those of its profiling are 0 to 1.
    "entity": (INDEX, None),
    "gputl": ("utilization_ratio", "ratio"),
    "mcutl": ("memory_utilization_ratio", "ratio"),
    "fbusd": ("memory_used_bytes", "bytes"),
    "fbttl": ("memory_total_bytes", "bytes"),
    "power": ("power_mw", "mW"),
    "tmptr": ("temperature_c", "°C"),
    "smclk": ("sm_clock_mhz", "MHz"),
    "mmclk": ("memory_clock_mhz", "MHz"),
    "smact": ("sm_active_ratio", "flag"),
    "smocc": ("sm_occupancy_ratio", "flag"),
    "tenso": ("tensor_active_ratio", "flag"),
    "fp32a": ("fp32_active_ratio", "flag"),
    "drama": ("dram_active_ratio", "flag"),
}

#: A unit to the factor that makes ours of it; without any the unit is the one that ``--format=nounits`` leaves out.
#: What nvidia-smi calls MB is 2^20 bytes.
_FACTORS: dict[Kind, dict[str, float]] = {
    "ratio": {"": 0.01, "%": 0.01, "percent": 0.01, "pct": 0.01},
    "bytes": {"": 2**20, "mib": 2**20, "mb": 2**20, "gib": 2**30, "gb": 2**30, "kib": 2**10, "b": 1, "bytes": 1},
    "mW": {"": 1000, "w": 1000, "watt": 1000, "watts": 1000, "mw": 1},
    "MHz": {"": 1, "mhz": 1, "ghz": 1000},
    "°C": {"": 1, "c": 1, "°c": 1, "celsius": 1, "degc": 1},
    "count": {"": 1},
    "bits": {"": 1},
    "flag": {"": 1, "bool": 1},
    "bytes_per_s": {"": 1e6, "mb/s": 1e6},
}
_UNITS = {unit for factors in _FACTORS.values() for unit in factors if unit}
_NUMBER = re.compile(r"([-+]?\d{1,15}(?:\.\d{1,15})?)\s*([^\s\d]{0,10})")
_IN_BRACKETS = re.compile(r"[\[(]([^\[(\])]{0,40})[\])]\s{0,9}$")
_ON = {"active": True, "not active": False}
#: A unit that ends a name of one's own: ``power_W``.
_UNIT_OF_NAME = re.compile(r"_(percent|pct|watts|w|mw|c|celsius|mib|mb|gib|gb|mhz|ghz)$")
_LARGEST = float(1 << 60)
_KNOWN_BITS = 0xFFFF

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: A clock that says less than 1970 or more than 2116 is wrong, and differences of such times are no int64 of ns.
_LATEST_NS = 1 << 62
#: Numbers of these many seconds, and of thousandths of them and so on, are times since the epoch: 2001 to 2286.
_EPOCH_S = (1e9, 1e10)
_SHORT_DATE = re.compile(r"(\d{4})(\d\d)(\d\d)")


class Column(msgspec.Struct, frozen=True):
    """What one column holds: the name of a field of ``GpuSample``, or of the row's time or device.

    ``kind`` is empty for the latter, ``unit`` the header's. ``bit`` is of a reason for a lower clock.
    """

    field: str
    kind: Kind | None = None
    unit: str = ""
    bit: int = 0


def column(header: str, *, dmon: bool = False) -> Column | None:
    """What a column of this header holds; ``None`` for one that is not known."""
    bracket = _IN_BRACKETS.search(header)
    unit = bracket[1].strip().lower() if bracket else ""
    plain = _IN_BRACKETS.sub("", header).strip().lower()
    name = re.sub(r"[^a-z0-9]+", "_", plain).strip("_")
    if dmon and name in _DMON:
        field, kind = _DMON[name]
        return Column(field, kind, unit)
    ending = _UNIT_OF_NAME.search(name)
    if ending and name not in _NAMES:
        name, unit = name[: ending.start()], unit or ending[1]
    found = _NAMES.get(name)
    return None if found is None else Column(found.field, found.kind, unit if unit in _UNITS else "", found.bit)


def is_queried(header: str) -> bool:
    """Whether only nvidia-smi calls a column so: its names have a dot."""
    known = column(header)
    return known is not None and known.kind is not None and "." in header


def _names() -> dict[str, Column]:
    named = {name: Column(field, kind) for field, kind, names in _SIGNALS for name in names.split()}
    named |= {name: Column(field) for field, names in _DEVICE.items() for name in names.split()}
    for word in ("throttle", "event"):
        named |= {
            f"clocks_{word}_reasons_{reason}": Column("throttle_reasons", "flag", bit=bit)
            for reason, bit in _REASONS.items()
        }
    return named


_NAMES = _names()


def value(cell: str, known: Column) -> float | None:
    """The number of a cell in our unit; ``None`` where it was not measured, such as ``[N/A]``, or is none.

    >>> value("33.09 W", Column("power_mw", "mW")), value("[Not Supported]", Column("power_mw", "mW"))
    (33090.0, None)
    """
    text = cell.strip().lower()
    if known.kind is None:
        return None
    if known.kind == "flag" and text in _ON:
        return float(_ON[text])
    if known.kind == "bits":
        return float(int(text, 16) & _KNOWN_BITS) if re.fullmatch(r"0x[0-9a-f]{1,16}", text) else None
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    factor = _FACTORS[known.kind].get(match[2] or known.unit)
    number = float(match[1]) * factor if factor is not None else -1.0
    highest = 1.0 if known.kind in ("ratio", "flag") else _LARGEST
    return number if 0.0 <= number <= highest or (known.kind == "°C" and number > -100.0 and factor) else None


def is_missing(cell: str) -> bool:
    """Whether a cell says that nothing was measured, so that it is no damage."""
    text = cell.strip().lower()
    return text in ("", "-", "n/a", "nan", "none") or text.startswith("[")


def time_ns(text: str) -> tuple[int, bool] | None:
    """Ns since the epoch, and whether the text names its time zone; ``None`` for no time, or none of 1970 to 2116.

    A time without a zone counts as if it were UTC. A number counts from the epoch, in s, ms, µs or ns.
    """
    text = text.strip()
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    for exponent in range(4):
        if _EPOCH_S[0] <= number / 1000**exponent < _EPOCH_S[1]:
            return _within(round(number * 1000 ** (3 - exponent)), zoned=True)
    try:
        known = datetime.fromisoformat(_SHORT_DATE.sub(r"\1-\2-\3", text.replace("/", "-"), count=1))
    except ValueError:
        return None
    if ":" not in text:
        return None
    zoned = known if known.tzinfo is not None else known.replace(tzinfo=UTC)
    try:
        since = zoned - _EPOCH
    except OverflowError:
        return None
    return _within((since // timedelta(microseconds=1)) * 1000, zoned=known.tzinfo is not None)


def _within(t_ns: int, *, zoned: bool) -> tuple[int, bool] | None:
    return (t_ns, zoned) if 0 <= t_ns <= _LATEST_NS else None
