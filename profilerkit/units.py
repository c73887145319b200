"""Convert numbers with units to the text a person reads, and back."""

_NS_STEPS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"))
_DECIMAL_STEPS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BYTE_STEPS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 99.95:
        return f"{value:,.0f}"
    if magnitude >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}"


def format_ns(value_ns: float) -> str:
    """Return a duration in the unit that keeps it between 1 and 1,000.

    >>> format_ns(38_100_000), format_ns(950), format_ns(0)
    ('38.1 ms', '950 ns', '0 ns')
    """
    for size, unit in _NS_STEPS:
        if abs(value_ns) >= size:
            return f"{_three_digits(value_ns / size)} {unit}"
    return f"{value_ns:.0f} ns"


_LONG_STEPS = ((86_400, "days"), (3_600, "h"), (60, "min"))


def format_long_ns(value_ns: float) -> str:
    """Return an estimated duration with two significant digits, from two minutes on in minutes, hours or days.

    >>> format_long_ns(3.419e12), format_long_ns(42.4e9), format_long_ns(2e15)
    ('57 min', '42 s', '23 days')
    """
    seconds = value_ns / 1e9
    size, unit = next(((size, unit) for size, unit in _LONG_STEPS if seconds >= 2 * size), (1, "s"))
    return f"{format_about(seconds / size)} {unit}"


def format_about(value: float) -> str:
    """Return an estimate with two significant digits.

    >>> format_about(96_409), format_about(7.26), format_about(0)
    ('96,000', '7.3', '0')
    """
    short = float(f"{value:.2g}")
    return f"{short:,.0f}" if short.is_integer() else f"{short:g}"


def format_ns_range(low_ns: float, high_ns: float) -> str:
    """Return a range of durations; the unit is printed once where both ends share it.

    >>> format_ns_range(84_500_000, 107_000_000), format_ns_range(900_000, 2_000_000), format_ns_range(5e6, 5e6)
    ('84.5–107 ms', '900 µs–2.00 ms', '5.00 ms')
    """
    low, high = format_ns(low_ns), format_ns(high_ns)
    if low == high:
        return high
    if low_ns < 0:
        return f"{low} to {high}"
    unit = f" {high.rpartition(' ')[2]}"
    return f"{low.removesuffix(unit)}–{high}"


def format_bytes(value_bytes: float) -> str:
    """Return a size in binary units.

    >>> format_bytes(1536), format_bytes(12)
    ('1.50 KiB', '12 B')
    """
    for size, unit in _BYTE_STEPS:
        if abs(value_bytes) >= size:
            return f"{_three_digits(value_bytes / size)} {unit}"
    return f"{value_bytes:.0f} B"


def format_decimal(value: float, unit: str) -> str:
    """Return a quantity with a decimal prefix, as rates and counts of operations are given.

    >>> format_decimal(6.32e14, "FLOP/s"), format_decimal(1.35e12, "B/s"), format_decimal(12, "FLOP")
    ('632 TFLOP/s', '1.35 TB/s', '12.0 FLOP')
    """
    for size, prefix in _DECIMAL_STEPS:
        if abs(value) >= size:
            return f"{_three_digits(value / size)} {prefix}{unit}"
    return f"{_three_digits(value)} {unit}"


def format_ratio(value_ratio: float) -> str:
    """Return a share of one as a percentage, with one decimal below 10 %.

    >>> format_ratio(0.611), format_ratio(0.047), format_ratio(0.0)
    ('61 %', '4.7 %', '0 %')
    """
    percent = 100.0 * value_ratio
    if percent == 0.0 or abs(percent) >= 9.95:
        return f"{percent:.0f} %"
    return f"{percent:.1f} %"


def format_ratio_range(low_ratio: float, high_ratio: float) -> str:
    """Return a range of shares; one number where both ends read the same.

    >>> format_ratio_range(0.48, 0.61), format_ratio_range(0.05, 0.05)
    ('48–61 %', '5.0 %')
    """
    low, high = format_ratio(low_ratio), format_ratio(high_ratio)
    return high if low == high else f"{low.removesuffix(' %')}–{high}"


WIDEST_RANGE = 0.30  #: a range of savings wider than this, share of the step, is no help: only its upper end is shown


def is_open(low_ratio: float, high_ratio: float, method: str = "") -> bool:
    """Return whether a saving reads "up to": its range is wide, or nothing but its bound is certain."""
    return method == "bound" or low_ratio == 0 or high_ratio - low_ratio > WIDEST_RANGE


def format_gain(low_ratio: float, high_ratio: float, method: str = "") -> str:
    """Return the range of a saving as it is read everywhere.

    >>> format_gain(0.48, 0.61), format_gain(0.15, 0.88), format_gain(0.0, 0.17, "bound"), format_gain(-0.02, 0.1)
    ('48–61 %', 'up to 88 %', 'up to 17 %', '-2.0 % to 10 %')
    """
    if is_open(low_ratio, high_ratio, method):
        return f"up to {format_ratio(high_ratio)}"
    if low_ratio < 0:
        return f"{format_ratio(low_ratio)} to {format_ratio(high_ratio)}"
    return format_ratio_range(low_ratio, high_ratio)


def format_saving(low_ratio: float, expected_ratio: float, high_ratio: float, method: str = "") -> str:
    """Return a saving with what is expected of it.

    >>> format_saving(0.48, 0.55, 0.61), format_saving(0.15, 0.68, 0.88), format_saving(0.0, 0.0, 0.17, "bound")
    ('55 % (48–61 %)', 'up to 88 % (68 % expected)', 'up to 17 %')
    """
    expected, gain = format_ratio(expected_ratio), format_gain(low_ratio, high_ratio, method)
    if not is_open(low_ratio, high_ratio, method):
        return f"{expected} ({gain})"
    return f"{gain} ({expected} expected)" if expected_ratio > 0 and expected != format_ratio(high_ratio) else gain


def format_count(value: float) -> str:
    """Return a count with thousands separators.

    >>> format_count(1234567)
    '1,234,567'
    """
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def format_value(value: float | None, unit: str) -> str:
    """Return a number in a report's unit (``ns bytes ratio count per_s text``); "not measured" for ``None``.

    >>> format_value(1.5e9, "bytes_per_s"), format_value(250_000, "mW"), format_value(45.0, "°C")
    ('1.50 GB/s', '250 W', '45.0 °C')
    """
    if value is None:
        return "not measured"
    formats = {"ns": format_ns, "bytes": format_bytes, "ratio": format_ratio, "count": format_count}
    if unit in formats:
        return formats[unit](value)
    if unit == "bytes_per_s":
        return format_decimal(value, "B/s") if value else "0 B/s"
    if unit == "mW":
        return format_decimal(value / 1000, "W")
    if unit == "per_s":
        return f"{_three_digits(value)}/s" if value else "0/s"
    return f"{_three_digits(value)} {unit}".strip()


def format_change(ratio: float) -> str:
    """Return a change as a percentage with its sign.

    >>> format_change(0.123), format_change(-0.04), format_change(0.0)
    ('+12 %', '−4.0 %', '0 %')
    """
    text = format_ratio(abs(ratio))
    if text in ("0 %", "0.0 %"):
        return "0 %"
    return f"{'+' if ratio > 0 else '−'}{text}"
