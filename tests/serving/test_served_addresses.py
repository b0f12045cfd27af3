"""A real service on `::`: every port answers over IPv4 and over IPv6."""

from __future__ import annotations

import json
import socket
import urllib.request
from typing import Any

import pytest
import tritonclient.grpc as grpc
from running_service import StartService

pytestmark = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
ASKED = {"text_input": "def f(", "max_tokens": 16, "stream": False}


def post(url: str) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(ASKED).encode())
    with urllib.request.urlopen(request, timeout=120) as answer:
        return dict(json.load(answer))


def test_every_port_answers_over_both_families_when_the_address_is_both(
    start_service: StartService,
) -> None:
    with start_service({"serving": {"address": "::"}}) as service:
        serving = service.settings.serving
        texts = set()
        for host in ("127.0.0.1", "[::1]"):
            url = f"http://{host}:{serving.http_port}/v2/models/ensemble/generate"
            texts.add(post(url)["text_output"])
            with grpc.InferenceServerClient(f"{host}:{serving.grpc_port}") as client:
                assert client.is_model_ready("ensemble")
            for port, path in ((serving.metrics_port, "metrics"), (serving.health_port, "ready")):
                with urllib.request.urlopen(f"http://{host}:{port}/{path}", timeout=60) as answer:
                    assert answer.status == 200
        assert len(texts) == 1
