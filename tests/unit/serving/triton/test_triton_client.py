"""How an error ends a stream, by what asked."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from card.serving.requests.refusal import Refusal

FINAL = 1
TOKEN = "of this pool"


@pytest.fixture
def triton_request(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module, beside a double of the one that Triton adds to a model's process."""
    utilities: Any = ModuleType("triton_python_backend_utils")
    utilities.TRITONSERVER_RESPONSE_COMPLETE_FINAL = FINAL
    utilities.TritonModelException = RuntimeError
    utilities.TritonError = type("TritonError", (), {"INTERNAL": 1, "__init__": lambda *_: None})
    utilities.InferenceResponse = lambda error: error
    monkeypatch.setitem(sys.modules, utilities.__name__, utilities)
    name = "card.serving.triton.triton_request"
    monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module(name)
    monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize(
    ("parameters", "flags"),
    [
        ({}, [FINAL]),
        ({"triton_card_token": "guessed"}, [FINAL]),
        ({"triton_card_token": "\ud800"}, [FINAL]),
        ({"triton_card_token": 5}, [FINAL]),
        ({"triton_card_token": TOKEN}, [0, FINAL]),
    ],
)
def test_an_error_brings_the_end_with_it_unless_a_model_of_the_server_asked(
    triton_request: Any, parameters: dict[str, Any], flags: list[int]
) -> None:
    sent: list[int] = []
    sender = SimpleNamespace(send=lambda *_, flags: sent.append(flags))
    request = SimpleNamespace(
        parameters=lambda: json.dumps(parameters), get_response_sender=lambda: sender
    )
    client = triton_request.TritonClient(request)
    client.through_bls = triton_request.came_through_bls(request, TOKEN)
    client.fail(Refusal("INTERNAL", "broken"))
    assert sent == flags
