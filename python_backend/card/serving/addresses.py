"""`serving.address` as each program spells it."""

from __future__ import annotations

LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where a program on this machine reaches what listens on all addresses of a family."""


def reachable(address: str) -> str:
    """Where a program on this machine reaches what listens on `address`."""
    return LOOPBACK.get(address, address)


def bracketed(address: str) -> str:
    """As URLs and gRPC write an address in front of a port."""
    return f"[{address}]" if ":" in address else address


def for_triton_http(address: str) -> str:
    """As Triton's HTTP server takes an address."""
    return f"ipv6:{address}" if ":" in address else address
