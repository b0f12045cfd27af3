"""The suite: who stands where, who leaves, and what a step costs at least."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from real_pair import DRAFT, TARGET
from rich.console import Console
from tokenizers import Tokenizer

from bench import plots, progress
from bench.activity import DraftActivity
from bench.conditions import Conditions, Machine
from bench.contest import Completion, Contender, ContenderError, compete
from bench.extremes import Observed, Timeline, Variant, WorstCase
from bench.figures import summarise
from bench.limits import Limits
from bench.measurement import Measurement, Task
from bench.prompts import Prompt
from bench.report import PAIR, SPECULATION, SPEED, SWEEP, print_tables
from bench.standings import Standing, best, compare, narrowed, stand
from bench.streams_figures import ContextCost, row_of
from bench.suite_report import SuiteReport, show_suite
from bench.terminal import make_console, say_reservation
from bench.unrelated import unrelated_draft
from bench.watch import Account

TOKENIZER = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
RANKS = {0.0: [np.array([0, 0, 1, 0])]}
COSTS = {1: {1: 2.0, 8: 3.0}, 2: {1: 1.0, 8: 2.5}}


def task_of(name: str, temperature: float = 0.0) -> Task:
    return Task(Prompt(name, name, (1, 2, 3)), temperature, 7, 4)


def written(speed: float = 100.0, tokens: tuple[int, ...] | None = (1, 2, 3, 4)) -> Measurement:
    return Measurement(
        text=str(tokens), tokens=tokens, generated=4, seconds=4 / speed, first_token_s=0.01,
        steps=4, drafted=0, accepted=0, queries=0, hits=0, draft=DraftActivity(0, 0, 0),
    )  # fmt: skip


def contender(
    system: str, speed: float = 100.0, *, where: str = "in_process", gamma: int | None = None,
    tokens: tuple[int, ...] = (1, 2, 3, 4), threads: int = 1,
) -> Contender:  # fmt: skip
    return Contender(
        system, where, threads, 8, gamma,  # type: ignore[arg-type]
        complete=lambda task: written(speed, tokens),
    )  # fmt: skip


ALONE = contender("autoregressive", 100)
LINE_UP = [
    ALONE,
    contender("autoregressive", 200, threads=2),
    contender("draft_then_verify", 500, gamma=4),
    contender("draft_then_verify", 400, gamma=8),
    contender("pearl", 600, gamma=4),
    contender("card_without_guesses", 640),
    contender("card", 800),
    contender("card", 760, where="grpc"),
    contender("draft_alone", 1600, tokens=(9, 9, 9, 9)),
    contender("openvino", 200, where="peer", tokens=(1, 2, 3, 9)),
    contender("openvino_speculative", 400, where="peer", gamma=8),
]
TASKS = [task_of("a"), task_of("b")]


# --- the contest ------------------------------------------------------------------------------


def test_who_cannot_go_on_leaves_and_the_others_do_not_notice() -> None:
    def fail(task: Task) -> Measurement:
        if task.prompt.id == "b":
            raise ContenderError("out of words")
        return written()

    failing = Contender("openvino", "peer", 2, 1, complete=fail)
    told: list[str] = []
    completions = compete(
        [ALONE, failing, contender("card")],
        [task_of(name) for name in "abc"],
        1,
        on_failure=lambda who, error: told.append(f"{who.system}: {error}"),
    )
    assert told == ["openvino: out of words"]
    texts = {s.system: s.texts for s in stand(completions)}
    assert texts == {"autoregressive": 3, "openvino": 1, "card": 3}


def test_no_prompt_is_begun_when_time_is_up_and_none_is_left_half() -> None:
    tasks = [task_of(name, temperature) for name in "abc" for temperature in (0.0, 0.8)]
    answers = iter([True, False])
    completions = compete([ALONE], tasks, 1, has_time=lambda: next(answers))
    assert [(c.task.prompt.id, c.task.temperature) for c in completions] == [
        ("a", 0.0), ("a", 0.8), ("b", 0.0), ("b", 0.8),
    ]  # fmt: skip


# --- standings --------------------------------------------------------------------------------


def standings() -> list[Standing]:
    return stand(compete(LINE_UP, TASKS, 1))


def of(found: Sequence[Standing], system: str, where: str = "in_process") -> Standing:
    (standing,) = (s for s in found if (s.system, s.where) == (system, where))
    return standing


def test_everybody_is_compared_with_our_target_alone_at_its_best_thread_count() -> None:
    fastest = best(standings())
    assert of(fastest, "autoregressive").threads == 2
    assert of(fastest, "card").ratio_to_autoregressive == pytest.approx(4.0)
    assert of(fastest, "openvino", "peer").ratio_to_autoregressive == pytest.approx(1.0)
    assert of(fastest, "draft_then_verify").gamma == 4


def test_only_our_texts_must_be_equal_and_a_peers_common_prefix_is_told() -> None:
    found = standings()
    assert of(found, "pearl").texts_equal is True
    assert of(found, "draft_alone").texts_equal is None
    peer = of(found, "openvino", "peer")
    assert (peer.texts_equal, peer.common_prefix) == (None, 0.75)
    assert of(found, "card").common_prefix is None
    wrong = stand(compete([ALONE, contender("pearl", tokens=(1, 2, 9, 4))], TASKS, 1))
    assert of(wrong, "pearl").texts_equal is False


def test_after_the_pilot_only_good_settings_go_on() -> None:
    fast_when_warm = Contender(
        "pearl", "in_process", 1, 8, 8, complete=lambda t: written(600 if t.temperature else 300)
    )
    line_up = [*LINE_UP, fast_when_warm]
    tasks = [task_of("a"), task_of("a", 0.8)]
    kept = narrowed(line_up, compete(line_up, tasks, 1), 0.85)
    assert ALONE not in kept, "one thread is half as fast as two"
    assert [(c.system, c.gamma) for c in kept if c.system in ("draft_then_verify", "pearl")] == [
        ("draft_then_verify", 4), ("pearl", 4), ("pearl", 8),
    ]  # fmt: skip


def test_card_is_compared_with_the_best_setting_of_every_other_system() -> None:
    found = compare(compete(LINE_UP, TASKS, 1))
    ratios = {comparison.to: comparison.ratio for comparison in found}
    assert ratios == {
        "autoregressive": pytest.approx(4.0),
        "draft_then_verify": pytest.approx(1.6),
        "pearl": pytest.approx(800 / 600),
        "card_without_guesses": pytest.approx(1.25),
        "draft_alone": pytest.approx(0.5),
        "openvino": pytest.approx(4.0),
        "openvino_speculative": pytest.approx(2.0),
    }


def test_a_comparison_by_text_is_the_median_of_what_each_text_gained() -> None:
    alone, card = {"a": 10.0, "b": 20.0, "c": 30.0}, {"a": 40.0, "b": 50.0, "c": 33.0}
    runners = [
        Contender("autoregressive", "in_process", 1, 1,
                  complete=lambda task: written(alone[task.prompt.id])),
        Contender("card", "in_process", 1, 8, complete=lambda task: written(card[task.prompt.id])),
    ]  # fmt: skip
    (comparison,) = compare(compete(runners, [task_of(name) for name in alone], 1))
    assert comparison.ratio == pytest.approx(40 / 20)
    assert comparison.by_text == pytest.approx(50 / 20)


# --- the report -------------------------------------------------------------------------------


def report() -> SuiteReport:
    completions = compete(LINE_UP, TASKS, 1)
    machine = Machine("a processor", 2, 8.0, "Linux", "3.11", "2.13", "2026.4", 0.1)
    conditions = Conditions(
        "./scripts/bench suite", "2026-01-01", machine, {}, "p.jsonl", 2, [0, 1], 4, 1,
        {"target": "openvino", "draft": "openvino"}, "bfloat16", True, COSTS, {1: 0.3, 8: 0.6},
        COSTS[2], 0.7,
    )  # fmt: skip
    ours: list[Completion] = [c for c in completions if c.contender.is_ours]
    passes = [(0.0, 0.5), (1.0, 1.5)]
    account = Account("target", 2, {"forward": 3.0}, {"forward": 0.9})
    return SuiteReport(
        conditions=conditions,
        standings=stand(completions),
        comparisons=compare(completions),
        figures=summarise(ours, RANKS, COSTS),
        limits=[Limits(1, 20.0, 10.0, 40_000_000, 0, 1.5), Limits(2, 20.0, 10.0, 40_000_000, 0, 1)],
        observed=Observed({1: 2, 4: 6}, 0.75, [account]),
        timelines=[Timeline("card", None, passes, passes)],
        worst_case=WorstCase(1.5, 2, 100.0, 97.0, 0.9, 0.97, True),
        sweep=[Variant("width", 1, 700.0, 3.5, 4.0), Variant("width", 4, 800.0, 4.0, 4.4)],
        skipped=["openvino cannot be installed: no network"],
    )


def test_the_figures_that_card_is_judged_by() -> None:
    found = {headline.figure: headline.value for headline in report().headlines()}
    assert found["CARD / autoregressive"] == pytest.approx(4.0)
    assert found["CARD / draft-then-verify"] == pytest.approx(1.6)
    assert found["CARD / PEARL"] == pytest.approx(4 / 3)
    assert found["CARD / OpenVINO GenAI, speculative"] == pytest.approx(2.0)
    assert found["our autoregressive / OpenVINO GenAI"] == pytest.approx(1.0)
    assert found["share of the draft model's own speed"] == pytest.approx(0.5)
    assert found["CARD through gRPC / in process"] == pytest.approx(0.95)
    assert found["CARD / CARD without guesses from the text"] == pytest.approx(1.25)
    worst = "worst case: CARD with an unrelated draft / autoregressive"
    assert found[worst] == 0.97
    assert found[f"{worst}, the first text, which finds that out"] == 0.9
    assert "CARD / its ideal of 8 rows" in found


def test_json_markdown_and_pictures_are_stored(tmp_path: Path) -> None:
    paths = report().store(tmp_path / "new" / "suite.json")
    assert all(path.stat().st_size for path in paths)
    assert {path.suffix for path in paths} == {".json", ".md", ".png"}
    content = json.loads(paths[0].read_text())
    assert content["best"][0]["system"] == "autoregressive"
    assert content["observed"]["accounts"][0]["phases"] == {"forward": 0.9}
    assert content["limits"][0]["floor_ms"] == pytest.approx(2.0)
    markdown = paths[1].read_text()
    assert markdown.index("| t | agreement | rows |") < markdown.index("| system |")
    assert "| OpenVINO GenAI, speculative | 8 tokens | peer | 0 |" in markdown
    assert "| draft-then-verify | γ = 4, 1 thread | in process | 0 |" in markdown
    assert "| draft | 0.30 | 0.60 |" in markdown
    assert "- openvino cannot be installed: no network" in markdown
    assert "| target | 2 | 3.00 | forward 3.00 | forward 90.0% | 90.0% |" in markdown


def test_a_suite_that_time_cut_short_says_so(tmp_path: Path) -> None:
    short = report()
    short = replace(short, conditions=replace(short.conditions, prompts_wanted=40))
    said = "The time was over after 2 of the 40 prompts wanted"
    markdown = short.store(tmp_path / "suite.json")[1].read_text()
    assert markdown.index(said) < markdown.index("## The pair")
    assert said not in report().markdown()
    output = StringIO()
    say_reservation(Console(file=output), short.conditions)
    assert said in output.getvalue()


def test_off_a_terminal_no_heading_is_broken(capsys: pytest.CaptureFixture[str]) -> None:
    found = report()
    print_tables(make_console(), found.figures)
    show_suite(make_console(), found)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    own = [[column.heading for column in columns] for columns in (PAIR, SPEED, SPECULATION, SWEEP)]
    for headings in [*own, *(headings for _, headings, _ in found.tables()[:-1])]:
        assert " ".join(headings).split() in lines


# --- pictures ---------------------------------------------------------------------------------


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """What would have been saved."""
    figures: list[Figure] = []

    def keep(figure: Figure, file: Path) -> Path:
        figures.append(figure)
        return file

    monkeypatch.setattr(plots, "_save", keep)
    return figures


def test_the_speeds_show_what_is_served_too(drawn: list[Figure]) -> None:
    plots.plot_speeds(Path("speeds.png"), best(standings()))
    (axes,) = drawn[0].axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert "CARD" in names
    assert "CARD, through gRPC" in names
    assert len(set(names)) == len(axes.patches)


def test_the_sweep_leaves_room_above_its_highest_point(drawn: list[Figure]) -> None:
    variants = [
        Variant("width", 1, 100.0, 1.0, 2.0),
        Variant("depth", 8, 900.0, 4.0, 2.0),
        Variant("growth", "layered", 300.0, 4.0, 2.0),
    ]
    plots.plot_sweep(Path("sweep.png"), variants)
    for axes in drawn[0].axes:
        assert list(axes.get_ylim()) == pytest.approx([0, 972.0])


def test_accepted_candidates_are_whole_numbers(drawn: list[Figure]) -> None:
    plots.plot_committed(Path("accepted.png"), Observed({1: 3, 2: 5, 3: 2}, None, []))
    ticks = drawn[0].axes[0].get_xticks()
    assert all(float(tick).is_integer() for tick in ticks)


def test_timelines_say_in_words_what_they_show(drawn: list[Figure]) -> None:
    passes = [(0.0, 0.5)]
    timelines = [
        Timeline("card", None, passes, passes),
        Timeline("draft_then_verify", 3, passes, passes),
    ]
    plots.plot_timeline(Path("timeline.png"), timelines)
    turns = "draft-then-verify, 3 draft passes before each verification"
    assert [axes.get_title(loc="left") for axes in drawn[0].axes] == [
        "CARD: target and draft, the first quarter of a second",
        "CARD: target and draft, two seconds",
        f"{turns}: target and draft, the first quarter of a second",
        f"{turns}: target and draft, two seconds",
    ]


# --- streams ----------------------------------------------------------------------------------


def test_latency_is_per_token_and_the_rate_that_of_all_streams() -> None:
    commits = [
        [(0.1, 1), (0.2, 5), (0.4, 2)],  # gaps 100 ms for 5 tokens, 200 ms for 2
        [(0.3, 1), (0.5, 1)],
    ]
    row = row_of("card", commits, 2.0, True)
    assert row.tokens_per_s == pytest.approx(10 / 0.5)
    assert row.full_tokens_per_s == pytest.approx(9 / 0.4)
    assert row.p50_ms == pytest.approx(20.0)  # 20 ms five times, 100 ms twice, 200 ms once
    assert row.gap_p99_ms == pytest.approx(200.0)
    assert row.first_token_ms == pytest.approx(200.0)


def test_streams_have_a_picture(tmp_path: Path) -> None:
    from bench.plots import plot_streams

    rows = [row_of("card", [[(0.1, 1), (0.2, 5)]], 2.0, True)]
    file = plot_streams(tmp_path / "streams.png", rows, [ContextCost(64, 1, 2.0)])
    assert file.stat().st_size


# --- the rest ---------------------------------------------------------------------------------


def test_an_unrelated_draft_has_the_shape_but_not_the_weights() -> None:
    from safetensors.torch import load_file

    with unrelated_draft(DRAFT) as path:
        assert json.loads((path / "config.json").read_text()) == json.loads(
            (DRAFT / "config.json").read_text()
        )
        before, after = (load_file(folder / "model.safetensors") for folder in (DRAFT, path))
    assert {n: (w.shape, w.dtype) for n, w in before.items()} == {
        n: (w.shape, w.dtype) for n, w in after.items()
    }
    matrices = [name for name, weight in before.items() if weight.dim() > 1]
    assert not any(torch.equal(before[name], after[name]) for name in matrices)
    assert not path.exists()


def test_off_a_terminal_progress_is_told_in_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 5.0, 25.0, 26.0, 27.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    output = StringIO()
    with progress.shown(Console(file=output), "texts", 4) as advance:
        for _ in range(4):
            advance()
    assert output.getvalue().splitlines() == ["texts: 2 of 4, 25 s", "texts: 4 of 4, 27 s"]
