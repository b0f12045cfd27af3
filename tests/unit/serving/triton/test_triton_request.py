"""What clients of `card` are sent, before a stand-in for Triton's sender."""

from __future__ import annotations

import importlib
import sys
from unittest.mock import MagicMock

import pytest

from card.serving.requests.refusal import Refusal


class _CannotSendError(Exception):
    pass


@pytest.mark.parametrize("sent", [0, 1])
def test_an_error_or_an_end_that_cannot_be_sent_is_logged_and_ends_nobody_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, sent: int
) -> None:
    pb_utils = MagicMock(TritonModelException=_CannotSendError)
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", pb_utils)
    module = importlib.import_module("card.serving.triton.triton_request")
    monkeypatch.setattr(module, "pb_utils", pb_utils)
    request = MagicMock()
    sender = request.get_response_sender.return_value
    sender.send.side_effect = [*[None] * sent, _CannotSendError("shared memory is full")]
    module.TritonClient(request).fail(Refusal("UNAVAILABLE", "try again"))
    assert "could not be sent: shared memory is full" in caplog.text
