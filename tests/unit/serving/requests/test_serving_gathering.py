"""How long deltas are gathered: a few streams as the settings say, many for longer."""

from __future__ import annotations

import pytest

from card.serving.requests import gathering
from card.serving.requests.gathering import Gathering
from card.settings import ServingSettings

MS = 1_000_000


def test_few_streams_gather_for_flush_ms_and_many_share_the_deltas_of_a_second() -> None:
    gathered = Gathering.of(ServingSettings(flush_ms=20, deltas_per_s=400))
    assert [gathered.interval_ns(streams) // MS for streams in (0, 1, 8, 16, 32)] == [
        20, 20, 20, 40, 80,
    ]  # fmt: skip


def test_nobodys_text_is_kept_back_for_more_than_a_second() -> None:
    gathered = Gathering.of(ServingSettings(flush_ms=20, deltas_per_s=1))
    assert gathered.interval_ns(256) == 1_000 * MS


def test_without_a_setting_every_core_is_worth_as_many_deltas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serving = ServingSettings(flush_ms=20)
    monkeypatch.setattr(gathering, "usable_cores", lambda: 2)
    assert Gathering.of(serving).interval_ns(16) == 80 * MS
    monkeypatch.setattr(gathering, "usable_cores", lambda: 16)
    assert Gathering.of(serving).interval_ns(32) == 20 * MS
