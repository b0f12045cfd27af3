"""Ports, addresses and HTTP on this machine."""

from __future__ import annotations

import http.client
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import cast


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


_PAST_PROXIES = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def open_local(request: str | urllib.request.Request, timeout_s: float) -> http.client.HTTPResponse:
    """The answer, as of `urllib.request.urlopen`. Raises `OSError`, for an answer that is an error
    its subclass `HTTPError`."""
    return cast(http.client.HTTPResponse, _PAST_PROXIES.open(request, timeout=timeout_s))


def reachable(address: str) -> str:
    """Where a program on this machine reaches what binds `address`."""
    return "127.0.0.1" if address == "0.0.0.0" else address
