"""Who is told that strangers reach what this version of Triton dies of."""

from __future__ import annotations

from typing import Any

import pytest

from card.serving.supervision.supervisor import _meets_strangers
from card.settings import ServingSettings


@pytest.mark.parametrize(
    ("serving", "meets"),
    [
        ({}, False),
        ({"address": "127.0.0.2"}, False),
        ({"address": "0.0.0.0"}, True),
        ({"address": "10.0.0.7"}, True),
        ({"address": "0.0.0.0", "guard": True}, True),
        ({"address": "0.0.0.0", "http_inference": False}, True),
        ({"address": "0.0.0.0", "guard": True, "http_inference": False}, False),
        (
            {
                "address": "0.0.0.0",
                "guard": True,
                "triton_arguments": ["--http-address=127.0.0.1"],
            },
            False,
        ),
    ],
)
def test_open_doors_are_told_of(serving: dict[str, Any], meets: bool) -> None:
    assert _meets_strangers(ServingSettings(**serving)) is meets
