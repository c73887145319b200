"""The names of threads, from the metadata events that name threads and processes."""

from collections.abc import Iterable

from profilerkit.trace.kineto.records import Event, Metadata
from profilerkit.trace.limits import DISTINCT_TEXTS, TEXT_BYTES
from profilerkit.trace.strings import ThreadIds, id_text, printable_text


class ThreadNames:
    """Names as they are met; the last one of a thread or process counts."""

    refused = 0  # further names are left out

    def __init__(self) -> None:
        self.processes: dict[str, str] = {}
        self.threads: dict[tuple[str, str], str] = {}
        self.room_bytes = TEXT_BYTES

    def __len__(self) -> int:
        return len(self.threads) + len(self.processes)

    def update(self, later: "ThreadNames") -> None:
        """Take names that were met later."""
        self.processes |= later.processes
        self.threads |= later.threads
        self.room_bytes -= TEXT_BYTES - later.room_bytes

    def add(self, events: Iterable[Event]) -> None:
        """Take the names among some events."""
        for event in events:
            if not isinstance(event, Metadata) or len(self) > DISTINCT_TEXTS:
                continue
            name = printable_text((event.args.name or "").strip())
            pid, tid = id_text(event.pid), id_text(event.tid)
            self.room_bytes -= len(name) + len(pid) + len(tid)
            if self.room_bytes < 0:
                return
            if name and event.name == "process_name":
                self.processes[pid] = name
            elif name and event.name == "thread_name":
                self.threads[pid, tid] = name

    def of(self, threads: ThreadIds) -> dict[int, str]:
        """Return thread id to name; a thread without one of its own takes its process's."""
        found = {
            thread: self.threads.get(pair) or self.processes.get(pair[0]) for pair, thread in threads.texts.items()
        }
        return {thread: name for thread, name in found.items() if name}
