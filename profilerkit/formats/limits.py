"""How much of a file is believed: what bounds the time and memory that a hostile or broken one can take."""

# The longest text of one event that is read. Real ones, stacks and shapes included, stay below 100 KB.
EVENT_BYTES = 16 * 1024 * 1024
# What may stand before and after the events: device properties and the profiler's log, real ones below 1 MB. Parsed
# as a whole it can take 30 times its size.
HEAD_BYTES = 4 * 1024 * 1024
TAIL_BYTES = 4 * 1024 * 1024

# Traces compress 11:1 to 19:1 and repetitive ones 40:1; deflate itself ends at 1032:1. Below the free size nothing
# is refused: inflating that much takes under a second.
INFLATION_RATIO = 200
FREE_INFLATED_BYTES = 512 * 1024 * 1024

# Real traces hold 75 to 2,100 distinct names. Names past either limit share one entry.
DISTINCT_TEXTS = 2**17
TEXT_BYTES = 64 * 1024 * 1024
# Events that keep what they say of their collective. Real traces hold 1 in 50, so this many only beyond 3 GB; each
# takes 200 bytes where the shortest text of one takes 50.
COLLECTIVES = 2**18

# A repair searches a text several times over, and no event is longer than this.
REPAIRED_BYTES = 256 * 1024
# So many pieces may fail to be repaired, and one more for each that succeeds; later ones are dropped untried.
FAILED_REPAIRS = 5_000
# So much text may be searched in vain, at 0.3 to 2 s for each MiB; what is repaired does not count.
SEARCHED_BYTES = 4 * 1024 * 1024
# A file that had so many pieces dropped, and more than ten for each event read, is read no further.
DROPPED_PIECES = 250_000

# Protocol buffers end at 2 GiB by their own rule, and are held as a whole. Packed ones inflate to less than this.
MESSAGE_BYTES = 2**31 - 1
FREE_MESSAGE_BYTES = 64 * 1024 * 1024
MESSAGE_RATIO = 40
# Fields of a protocol buffer that are looked at, so many and a few for each byte of the file: a plain file has one for
# two bytes at most, and packed ones for a quarter of a byte. Each takes a microsecond, and an event of three 130 bytes.
FREE_FIELDS = 2**23
FIELDS_PER_BYTE = 4
# Events of an XPlane that are looked at, empty ones included: each takes two bytes at least, and 50 of memory. XLA's
# profiler keeps a million for a device.
XPLANE_EVENTS = 2**24
# Lines of one plane, and names of one plane; real ones have hundreds, and tens of thousands.
XPLANE_LINES = 2**14
XPLANE_NAMES = 2**19
