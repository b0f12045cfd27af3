"""Ports that are kept for a server which is about to start."""

from __future__ import annotations

import socket

import pytest

from card.serving.supervision.ports import reserved_ports

HOST = "127.0.0.1"
MANY = 300


def test_nobody_is_given_a_reserved_port() -> None:
    """Of many drawn by turns, some would be drawn twice if they were not kept."""
    with reserved_ports(MANY) as ones, reserved_ports(MANY) as others:
        assert len({*ones, *others}) == 2 * MANY


def test_one_server_listens_at_a_reserved_port_and_no_second_one() -> None:
    with reserved_ports(1) as (port,), socket.create_server((HOST, port)):
        socket.create_connection((HOST, port)).close()
        with pytest.raises(OSError, match="in use"):
            socket.create_server((HOST, port))


def test_nobody_answers_at_a_reserved_port() -> None:
    with reserved_ports(1) as (port,), socket.socket() as client:
        assert client.connect_ex((HOST, port)) != 0
