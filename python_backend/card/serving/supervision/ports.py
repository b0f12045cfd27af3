"""Ports for servers that are started for a while, beside others that look for theirs."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def reserved_ports(count: int, address: str = "127.0.0.1") -> Iterator[list[int]]:
    """Ports of `address`, all different, that nobody else is given while this lasts.

    The system hands out no port that a socket is bound to, neither to who asks for any nor to a
    connection that goes out; yet whoever sets SO_REUSEADDR, as servers do, may listen where no
    other does. Raises `OSError` for an address that is not this machine's.
    """
    with ExitStack() as stack:
        holders = [stack.enter_context(socket.socket()) for _ in range(count)]
        for holder in holders:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind((address, 0))
        yield [int(holder.getsockname()[1]) for holder in holders]
