"""The family's registry and its one table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from test_bench_figures import ALONE, CARD, completion
from test_bench_report import report

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


def test_the_table_has_a_row_a_system_with_its_speed_up_and_the_claim_beside(
    tmp_path: Path,
) -> None:
    loose = replace(CARD, system="pearl", lossless=False)
    completions = [
        completion(contender, str(number), speed, equal=equal)
        for contender, speed, equal in (
            (ALONE, 100.0, True), (CARD, 200.0, True), (loose, 300.0, False),
        )
        for number in range(2)
    ]  # fmt: skip
    base = report()
    questions = [Question(name, name, (PLAIN,)) for name in SYSTEMS]
    rows = summarise(completions, {})
    found = FamilyReport(base.conditions, ratios(completions, questions), rows, rows, [])
    json_file, beside = store(found, tmp_path / "family.json")
    content = json.loads(json_file.read_text())
    assert FamilyReport.stored(content).markdown() == beside.read_text()
    told = {row["system"]: row for row in content["rows"]}
    assert [told[name]["lossless"] for name in told] == [True, True, False]
    assert told["pearl"]["texts_equal"] is None
    assert (told["card"]["claim"], told["card"]["paper"]) == (
        SYSTEMS["card"].claim,
        SYSTEMS["card"].paper,
    )
    (card,) = (row for row in found.tables()[0].rows if row[0] == "card")
    assert card[-3:] == ["2.00 (2.00–2.00)", SYSTEMS["card"].claim, SYSTEMS["card"].paper]


def test_the_winners_are_the_fastest_lossless_systems_of_each_kind() -> None:
    pearl = replace(CARD, system="pearl")
    loose = replace(CARD, system="fly", lossless=False)
    speeds = ((ALONE, 100.0), (CARD, 200.0), (pearl, 150.0), (loose, 900.0))
    completions = [
        completion(contender, str(number), speed)
        for contender, speed in speeds
        for number in range(2)
    ]
    questions = [Question(name, name, (PLAIN,)) for name in SYSTEMS]
    rows = summarise(completions, {})
    base = report()
    winners = FamilyReport(
        base.conditions, ratios(completions, questions), rows, rows, []
    ).winners()
    assert winners.headings == ["kind of text", "texts", "fastest, t 0", "next, t 0", "CARD, t 0"]
    assert winners.rows[0] == [
        "all",
        "2",
        "card 2.00 (2.00–2.00)",
        "pearl 1.50 (1.50–1.50)",
        "2.00",
    ]


def test_what_each_is_worth_names_systems_as_the_registry_does_and_marks_the_fastest() -> None:
    slow = replace(CARD, system="draft_then_verify")
    loose = replace(CARD, system="fly", lossless=False)
    speeds = ((ALONE, 100.0), (slow, 150.0), (CARD, 200.0), (loose, 900.0))
    completions = [completion(who, str(n), speed) for who, speed in speeds for n in range(2)]
    questions = [Question(name, name, (PLAIN,)) for name in SYSTEMS]
    rows = summarise(completions, {})
    worth = FamilyReport(report().conditions, ratios(completions, questions), rows, [], []).worth()
    assert [row[:2] for row in worth.rows] == [
        ["autoregressive", "1.00"],
        ["draft_then_verify", "1.50"],
        ["card", "**2.00**"],
        ["fly", "9.00"],
    ]


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
