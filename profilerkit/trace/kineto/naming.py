"""The names of threads, from the metadata events that name threads and processes."""

from collections.abc import Iterable

from profilerkit.trace.kineto.records import Event, Metadata
from profilerkit.trace.limits import DISTINCT_TEXTS, TEXT_BYTES
from profilerkit.trace.strings import ThreadIds, id_text, printable_text


class ThreadNames:
    """Names as they are met; the last one of a thread or process counts."""

    def __init__(self) -> None:
        self._processes: dict[str, str] = {}
        self._threads: dict[tuple[str, str], str] = {}
        self._room_bytes = TEXT_BYTES

    def add(self, events: Iterable[Event]) -> None:
        """Take the names among some events."""
        for event in events:
            if not isinstance(event, Metadata) or len(self._threads) + len(self._processes) > DISTINCT_TEXTS:
                continue
            name = printable_text((event.args.name or "").strip())
            pid, tid = id_text(event.pid), id_text(event.tid)
            self._room_bytes -= len(name) + len(pid) + len(tid)
            if self._room_bytes < 0:
                return
            if name and event.name == "process_name":
                self._processes[pid] = name
            elif name and event.name == "thread_name":
                self._threads[pid, tid] = name

    def of(self, threads: ThreadIds) -> dict[int, str]:
        """Return thread id to name; a thread without one of its own takes its process's."""
        found = {
            thread: self._threads.get(pair) or self._processes.get(pair[0]) for pair, thread in threads.texts.items()
        }
        return {thread: name for thread, name in found.items() if name}
