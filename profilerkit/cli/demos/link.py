"""A slow network between processes of one host: the kernel paces what their connections send."""

import os
import socket
import sys
from pathlib import Path

#: Of linux's asm-generic/socket.h; Python has no name for it. On loopback TCP paces itself, without a queue or rights.
SO_MAX_PACING_RATE = 47


def slow_link(bytes_per_s: int) -> None:
    """Let each open connection of this process send no faster; as fast as ever where the system is not linux."""
    if sys.platform != "linux":
        return
    for descriptor in list(Path("/proc/self/fd").iterdir()):
        try:
            if not descriptor.is_socket():
                continue
            connection = socket.socket(fileno=os.dup(int(descriptor.name)))
        except OSError:
            continue  # Closed since it was listed.
        with connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
                connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, bytes_per_s)
