"""Which parts of the step the fix of each rule is about."""

from profilerkit.analysis.communication.traffic import TRANSFER
from profilerkit.analysis.leaves import WAITS

#: The parts outside the kernels that the fix of each rule with a bound makes shorter.
PARTS_OF_RULE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("IN001", "IN002", "IN003", "IN005", "IN006", "IN007", "IN008"), WAITS),
    **dict.fromkeys(("IN004", "IN011", "IN013", "IN014"), WAITS),
    "IN009": ("input.h2d",),
    "IN010": ("input.h2d",),
    "ME001": ("mem.alloc",),
    **dict.fromkeys(("CO001", "CO002", "CO004", "CO005", "CO006", "CO007", "CO010"), TRANSFER),
    "CO003": ("comm.skew",),
    **dict.fromkeys(("CP001", "CP002", "CP003", "CP004", "CP005", "CP006", "CP007", "CP009", "CP010"), ()),
    "CO009": TRANSFER,
    "CO011": (*TRANSFER, "comm.skew"),
    "CO012": (),
    "OV001": ("over.dispatch", "over.launch", "over.python"),
    "OV002": ("sync.drain", "sync.d2h", "over.python", "over.dispatch", "over.launch"),
    "OV003": ("sync.drain", "sync.d2h"),
    "OV004": ("over.gc",),
    "OV005": ("over.python",),
    "OV006": ("warm.compile", "other.phase"),
    "OV008": (),
    "OV009": (),
    "OV010": (),
    "RU005": (),
    "RU009": (),
    "RU001": ("other.ckpt",),
    "RU002": ("other.eval", "other.log", "other.phase", "other.stall"),
    "ME005": ("mem.recompute",),
    "ME007": (),
    "ME008": ("mem.offload",),
}
