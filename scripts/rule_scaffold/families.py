"""List the families of rules: the letters of their codes, their folders and their parts of the step."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """One family.

    Attributes:
        folder: of its rules.
        group: parts of the step that a new rule of it looks at.
        part: one of them, for its tests.
        what: those parts in words.
    """

    folder: str
    group: str
    part: str
    what: str


FAMILIES = {
    "IN": Family("input", "input.", "input.wait", "waiting for data"),
    "ME": Family("memory", "mem.", "mem.alloc", "allocator calls"),
    "CO": Family("comm", "comm.", "comm.bw", "exposed communication"),
    "CP": Family("compute", "compute.small", "compute.small", "small kernels"),
    "OV": Family("overhead", "over.", "over.python", "Python between operators"),
    "RU": Family("run", "other.", "other.ckpt", "work other than training"),
}
#: Of a rule of somebody else, whose letters may be any.
OWN = Family("own", "input.", "input.wait", "waiting for data")
