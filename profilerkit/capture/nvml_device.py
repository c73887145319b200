"""Which of the machine's devices this process trains on: told by UUID, never by number.

NVML counts in the order of the bus, CUDA in an order of its own and only what ``CUDA_VISIBLE_DEVICES`` shows: number 0
of one is seldom number 0 of the other.
"""

import sys
from dataclasses import dataclass
from typing import Any

from profilerkit.capture.environment import cuda_device
from profilerkit.capture.nvml_calls import Calls


@dataclass(frozen=True, slots=True)
class Device:
    """A device in NVML.

    Attributes:
        handle: what the process has: a device, or a MIG device of it.
        whole: the device that ``handle`` is, or is a part of.
        instance: number of the GPU instance of a MIG device; ``None`` for a whole one.
        uuid: of ``handle``.
        found_by: how it was told from the others.
    """

    handle: Any
    whole: Any
    instance: int | None
    uuid: str | None
    found_by: str


def hides_all(visible: str | None) -> bool:
    """Whether ``CUDA_VISIBLE_DEVICES`` leaves no device: CUDA stops at the first number that is none."""
    return visible is not None and visible.split(",")[0].strip() in ("", "-1")


class Finder:
    """Finds the device of this process, as soon as that can be known."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._known: list[tuple[Any, list[Any]]] | None = None

    def find(self, visible: str | None) -> tuple[Device | None, str]:
        """The device, or why it is not known: by CUDA's UUID once CUDA is in use, before that by ``visible``."""
        _, uuid = cuda_device()
        if uuid is not None:
            found = self._by_uuid((uuid, uuid.replace("GPU-", "MIG-", 1)), "the UUID of the device that CUDA uses")
            return found, "" if found is not None else f"NVML has no device with CUDA's UUID, {uuid}"
        entries = [entry.strip() for entry in (visible or "").split(",") if entry.strip()]
        if len(entries) == 1 and entries[0].startswith(("GPU-", "MIG-")):
            found = self._by_uuid((entries[0],), "the UUID in CUDA_VISIBLE_DEVICES")
            if found is not None:
                return found, ""
            return None, f"NVML has no device {entries[0]}, which CUDA_VISIBLE_DEVICES names"
        return self._only_one(entries)

    def _only_one(self, entries: list[str]) -> tuple[Device | None, str]:
        """The one device there is."""
        if "torch" not in sys.modules:
            return None, "torch was not imported"
        there = [one for device, parts in self._devices() for one in (parts or [device])]
        if len(there) == 1:
            return self._described(there[0], "the only device"), ""
        if not there:
            return None, "NVML sees no device"
        named = f"; CUDA_VISIBLE_DEVICES is {','.join(entries)}" if entries else ""
        return None, f"this process never used CUDA, and could use any of {len(there)} devices{named}"

    def _by_uuid(self, uuids: tuple[str, ...], found_by: str) -> Device | None:
        """The device with one of these UUIDs, or the only one whose UUID begins so: CUDA takes shortened ones."""
        for uuid in uuids:
            handle = self._calls.ask("nvmlDeviceGetHandleByUUID", uuid.encode())
            if handle is not None:
                return self._described(handle, found_by)
        everything = [one for device, parts in self._devices() for one in (device, *parts)]
        alike = [one for one in everything if (self._uuid(one) or "").startswith(uuids)]
        return self._described(alike[0], found_by) if len(alike) == 1 else None

    def _described(self, handle: Any, found_by: str) -> Device:
        ask, whole, instance = self._calls.ask, handle, None
        if ask("nvmlDeviceIsMigDeviceHandle", handle):
            instance = ask("nvmlDeviceGetGpuInstanceId", handle)
            whole = ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle) or handle
        return Device(handle, whole, instance, self._uuid(handle), found_by)

    def _devices(self) -> list[tuple[Any, list[Any]]]:
        """Handles of the whole devices, each with those of its MIG devices. Asked once: a handle may take 6 ms."""
        if self._known is None:
            ask = self._calls.ask
            handles = [ask("nvmlDeviceGetHandleByIndex", index) for index in range(ask("nvmlDeviceGetCount") or 0)]
            self._known = [(handle, self._parts(handle)) for handle in handles if handle is not None]
        return self._known

    def _parts(self, device: Any) -> list[Any]:
        """Handles of the MIG devices of one device; none where MIG is off."""
        ask = self._calls.ask
        mode = ask("nvmlDeviceGetMigMode", device)
        most = (ask("nvmlDeviceGetMaxMigDeviceCount", device) or 0) if mode and mode[0] else 0
        handles = [ask("nvmlDeviceGetMigDeviceHandleByIndex", device, index) for index in range(most)]
        return [handle for handle in handles if handle is not None]

    def _uuid(self, handle: Any) -> str | None:
        return text(self._calls.ask("nvmlDeviceGetUUID", handle))


def text(answer: str | bytes | None) -> str | None:
    """What a function of ``pynvml`` says: bytes until version 11.5, text since."""
    return answer.decode("ascii", "replace") if isinstance(answer, bytes) else answer
