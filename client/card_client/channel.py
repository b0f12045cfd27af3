"""Options of a gRPC connection."""

from __future__ import annotations

import ipaddress

from tritonclient.grpc import MAX_GRPC_MESSAGE_SIZE

_ALWAYS = [
    ("grpc.max_send_message_length", MAX_GRPC_MESSAGE_SIZE),
    ("grpc.max_receive_message_length", MAX_GRPC_MESSAGE_SIZE),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
"""The first two are tritonclient's own, which these replace; without the others gRPC would leave a
server that was away for a minute alone for another half."""

_BALANCED = [("grpc.lb_policy_name", "round_robin")]

_PAST_PROXIES = [("grpc.enable_http_proxy", 0)]
"""No proxy can reach this machine for us, whatever `https_proxy` says."""


def channel_options(address: str, *, balanced: bool = False) -> list[tuple[str, str | int]]:
    """gRPC's options for a server at `HOST:PORT` or a target of gRPC's own form.

    balanced  requests take turns among the servers that the name stands for
    """
    options: list[tuple[str, str | int]] = [*_ALWAYS]
    if balanced:
        options += _BALANCED
    if is_here(address):
        options += _PAST_PROXIES
    return options


def is_here(address: str) -> bool:
    """Whether the address is one of this machine's own, for itself alone."""
    host = address.rsplit("/", 1)[-1].rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
