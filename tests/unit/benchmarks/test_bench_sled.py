"""What `bench sled` makes of what devices wrote."""

from __future__ import annotations

import json
from pathlib import Path

from bench.conditions import this_machine
from bench.report import store
from bench.sled import WAYS, SledReport, Text, Wave, rows_of

ALONE, TURNS, FREE = WAYS


def wave(seconds: float, ids: tuple[int, ...] = (1, 2, 3, 4)) -> Wave:
    """Two texts of four tokens, two steps each, in three passes."""
    return Wave((Text((1, 2, 3, 4), 2), Text(ids, 2)), seconds, 3)


def test_each_way_is_compared_with_the_server_alone_and_stored(tmp_path: Path) -> None:
    measured = {
        (20, ALONE): [wave(1.0), wave(2.0), wave(4.0)],
        (20, TURNS): [wave(0.5), wave(1.0), wave(8.0)],
        (20, FREE): [wave(1.0), wave(2.0), wave(4.0, ids=(1, 2, 3, 5))],
    }
    found = SledReport("sled", "today", this_machine(), {}, 4, 3, 0.6, rows_of(measured))
    file, markdown = store(found, tmp_path / "sled.json")
    rows = {row["way"]: row for row in json.loads(file.read_text())["rows"]}
    turns = rows[TURNS]
    assert (turns["delay_ms"], turns["decoding"]) == (20, "draft_then_verify")
    assert (turns["tokens_per_s"], turns["ratio"]) == (8.0, 2.0), "medians of the rounds"
    assert (turns["tokens_per_step"], turns["steps_per_pass"]) == (2.0, 4 / 3)
    assert [row["texts_equal"] for row in rows.values()] == [True, True, False]
    assert "| DIFFER |" in markdown.read_text()
