"""The family's registry and its one table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from test_bench_figures import ALONE, CARD, completion
from test_bench_report import report

from bench.contest import Contender
from bench.devices import CountedModel
from bench.family import FamilyReport
from bench.figures import summarise
from bench.ratios import Question, ratios
from bench.report import store
from bench.systems import SYSTEMS
from card.settings import Settings
from card.speculation.pacing import PACINGS, PLAIN


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_is_settings_that_a_server_would_take(name: str) -> None:
    system = SYSTEMS[name]
    wanted = {"decoding": system.decoding, **system.speculation}
    if not system.lossless:
        wanted["lossy_acceptance"] = [system.acceptance]
    Settings.model_validate({"speculation": wanted})
    assert system.decoding in PACINGS
    assert system.claim
    assert system.paper


LOOSE = replace(CARD, system="fly", lossless=False)
PEARL = replace(CARD, system="pearl")


def family_of(*speeds: tuple[Contender, float]) -> FamilyReport:
    completions = [
        completion(who, str(number), speed, equal=who.lossless)
        for who, speed in speeds
        for number in range(2)
    ]
    questions = [Question(name, name, (PLAIN,)) for name in SYSTEMS]
    rows = summarise(completions, {})
    return FamilyReport(report().conditions, ratios(completions, questions), rows, rows, [])


FAMILY = family_of((ALONE, 100.0), (CARD, 200.0), (PEARL, 150.0), (LOOSE, 900.0))


def test_what_is_stored_has_a_row_a_system_and_is_shown_again_as_it_was(tmp_path: Path) -> None:
    json_file, beside = store(FAMILY, tmp_path / "family.json")
    content = json.loads(json_file.read_text())
    assert FamilyReport.stored(content).markdown() == beside.read_text()
    told = {row["system"]: row for row in content["rows"]}
    assert {name: row["lossless"] for name, row in told.items()} == {
        "autoregressive": True, "card": True, "pearl": True, "fly": False,
    }  # fmt: skip
    assert told["fly"]["texts_equal"] is None
    assert told["card"]["claim"] == SYSTEMS["card"].claim


def test_the_winners_are_the_fastest_lossless_systems() -> None:
    first = FAMILY.winners().rows[0]
    assert [cell.split()[0] for cell in first[2:]] == ["card", "pearl", "2.00"]


def test_passes_of_a_device_are_counted() -> None:
    class Model:
        end_ids = ()

        def tokens(self, text: str) -> list[int]:
            return [len(text)]

        def next_token(self, tokens: Sequence[int]) -> int:
            return tokens[-1] + 1

    counted = CountedModel(Model())
    before = counted.activity
    assert [counted.next_token([7]), *counted.tokens("abc")] == [8, 3]
    found = counted.activity.since(before)
    assert found.passes == 1
    assert found.busy_ns > 0
