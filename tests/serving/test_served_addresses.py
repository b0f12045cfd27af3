"""A real service on `::`: every port answers over IPv6."""

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


def test_every_port_answers_over_ipv6_when_the_address_is_every_ipv6_address(
    start_service: StartService,
) -> None:
    with start_service({"serving": {"address": "::"}}) as service:
        serving = service.settings.serving
        assert post(f"http://[::1]:{serving.http_port}/v2/models/ensemble/generate")["text_output"]
        with grpc.InferenceServerClient(f"[::1]:{serving.grpc_port}") as client:
            assert client.is_model_ready("ensemble")
        for port, path in ((serving.metrics_port, "metrics"), (serving.health_port, "ready")):
            with urllib.request.urlopen(f"http://[::1]:{port}/{path}", timeout=60) as answer:
                assert answer.status == 200
