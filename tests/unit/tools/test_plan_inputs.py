"""What goes into a prediction: measured foresight, drawn foresight, hardware, results."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from fake_engine import FakeEngine, FakeModel
from one_process import autoregressive, request_of
from typer.testing import CliRunner

from bench.prompts import Prompt
from bench.systems import SYSTEMS
from card.speculation.ngram import NgramMemory
from card.speculation.ngram_file import table_of
from planning import checking
from planning.acceptance import Likeness, Profile, weights_hash
from planning.candidates import Text
from planning.command import PROFILES, app, profile_of
from planning.errors import PlanError
from planning.hardware import catalogue, preset_names, read_preset, scenes
from planning.measuring import measure_foresight
from planning.predicting import Grid, predict
from planning.results import Result

MEASURED = Path(__file__).parent / "plan_result.json"
"""A result of the benchmark on the prompts, and with the weights, of the profile below."""

PROFILE = Profile.read(PROFILES / "prompts.yaml")
GREEDY = PROFILE.foresights[0]

compare = partial(checking.compare, repetitions=1)
"""Where luck decides nothing that is asked, one run over the texts is enough."""


# --- foresight ----------------------------------------------------------------------------------


def test_a_draft_that_is_the_target_foresees_everything_and_tables_foresee_more() -> None:
    model, prompt = FakeModel(), Prompt("a", "", (3, 1, 4, 1, 5))
    engines = FakeEngine(model, tree=False), FakeEngine(model, tree=True)
    written = autoregressive(model, request_of(prompt.tokens, 24))
    table = NgramMemory(frozen=table_of([[*prompt.tokens, *written]] * 2))
    alone, told = (
        measure_foresight(*engines, [prompt], 24, 0.0, ngrams=ngrams) for ngrams in (None, table)
    )
    assert (alone.agreement, alone.texts[0].ranks) == (1.0, "0" * 24)
    assert told.right_proposals > alone.right_proposals


@pytest.mark.parametrize("agreement", [0.6, 0.75, 0.9])
def test_drawn_texts_agree_as_often_as_asked_and_their_confidence_is_calibrated(
    agreement: float,
) -> None:
    drawn = Likeness(GREEDY, 0.3).draw(agreement, 8, 1000)
    assert drawn.agreement == pytest.approx(agreement, abs=0.02)
    right: dict[str, list[bool]] = {}
    for text in drawn.texts:
        for level, rank in zip(text.confidence, text.ranks, strict=True):
            right.setdefault(level, []).append(rank == "0")
    shares = [float(np.mean(right[level])) for level in sorted(right)]
    assert shares[0] < 0.4
    assert shares[-1] > 0.95
    assert shares == sorted(shares)


def test_a_profile_that_lacks_texts_says_so() -> None:
    with pytest.raises(PlanError, match="texts, number 1000 is needed"):
        GREEDY.limited([0, 1000], 10)
    with pytest.raises(PlanError, match="tokens, 100000 are needed"):
        GREEDY.limited([0], 100_000)


def test_a_result_is_simulated_on_the_texts_that_it_measured() -> None:
    chosen = GREEDY.limited([5, 2], 10)
    assert [text.ranks for text in chosen.texts] == [GREEDY.texts[n].ranks[:10] for n in (5, 2)]
    result = Result.read(MEASURED)
    assert result.model_copy(update={"prompt_numbers": [7, 3]}).texts == [7, 3]
    with pytest.raises(PlanError, match="which prompts it took"):
        _ = result.model_copy(update={"prompt_numbers": None}).texts


# --- hardware -----------------------------------------------------------------------------------


def test_every_preset_can_be_read_and_names_its_sources() -> None:
    for name in preset_names():
        assert scenes(read_preset(name))
    devices, models = catalogue()
    assert all(device.source for device in devices.values())
    assert all(model.source for model in models.values())


def write(folder: Path, **changes: object) -> Path:
    content = {
        "title": "a pair",
        "target": "llama-3.1-70b",
        "draft": "llama-3.2-1b",
        "placements": [{"name": "here", "device": "h100", "target_devices": 4}],
    }
    path = folder / "pair.yaml"
    path.write_text(yaml.safe_dump(content | changes))
    return path


def test_autoregressive_70b_on_four_h100_is_near_what_was_published(tmp_path: Path) -> None:
    (scene,) = scenes(read_preset(str(write(tmp_path))))
    # 54.7 tokens/s in SSD, arXiv 2603.03251: nothing here was fitted to it.
    assert 1e3 / scene.target.work(1, 512).ms == pytest.approx(54.7, rel=0.12)


def test_a_model_that_does_not_fit_is_said_not_to(tmp_path: Path) -> None:
    (scene,) = scenes(
        read_preset(str(write(tmp_path, placements=[{"name": "a", "device": "h100"}])))
    )
    assert scene.problem is not None
    assert "does not fit" in scene.problem


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"target": "gpt"}, "no model 'gpt'"),
        ({"placements": [{"name": "a", "device": "abacus"}]}, "no device 'abacus'"),
        ({"placements": [{"name": "a", "device": "h100", "target_devices": 7}]}, "cannot share"),
        (
            {"placements": [{"name": "a", "device": "h100", "target_weights": "fp2"}]},
            "target_weights",
        ),
        ({"titel": "a"}, "titel"),
    ],
)
def test_a_wrong_preset_is_refused_by_name(
    tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    with pytest.raises(PlanError, match=said):
        read_preset(str(write(tmp_path, **changes)))


def test_a_shared_device_slows_both_and_two_do_not(tmp_path: Path) -> None:
    grid = Grid(widths=(4,), depths=(16,), rows=(8,), gammas=(4,))
    placements = [
        {"name": "two", "device": "h200", "target_weights": "fp8"},
        {"name": "one", "device": "h200", "target_weights": "fp8", "draft_devices": 0},
    ]
    apart, together = scenes(read_preset(str(write(tmp_path, placements=placements))))
    likeness = Likeness(GREEDY, 0.3)
    pacings = ("card", "autoregressive", "draft_then_verify")
    (two, one) = [
        predict(scene, likeness, [0.75], grid=grid, pacings=pacings) for scene in (apart, together)
    ]
    assert one.of("card", 0.75).tokens_per_s < two.of("card", 0.75).tokens_per_s
    assert one.of("autoregressive", 0.75).speed_up == 1.0
    # Draft-then-verify never runs both at once.
    dtv = [found.of("draft_then_verify", 0.75).tokens_per_s for found in (one, two)]
    assert dtv[0] == pytest.approx(dtv[1])


# --- results ------------------------------------------------------------------------------------


def few_texts() -> dict[str, Any]:
    """The result as if its greedy figures were of its first texts: quick to simulate."""
    content: dict[str, Any] = json.loads(MEASURED.read_text())
    content["rows"] = [row for row in content["rows"] if row["temperature"] == 0]
    return content | {"prompt_numbers": [0, 1, 2]}


def without_control() -> dict[str, Any]:
    """A run whose controller never stopped the draft is simulated once."""
    content = few_texts()
    return content | {"rows": [{**row, "rows_adapt": False} for row in content["rows"]]}


def test_every_measured_pacing_is_reproduced_within_a_tenth() -> None:
    result = Result.read(MEASURED)
    for row in result.rows:
        if row.where == "in_process":
            foresight = PROFILE.at(row.temperature)
            assert foresight is not None
            found = compare(result, row, foresight)
            assert abs(found.error) < 0.10, row


def test_check_prints_every_pacing_and_fails_beyond_the_tolerance(tmp_path: Path) -> None:
    out, few = tmp_path / "out.json", tmp_path / "few.json"
    few.write_text(json.dumps(without_control()))
    profile = str(PROFILES / "prompts.yaml")
    arguments = ["check", str(few), "--profile", profile, "--json", str(out)]
    shown = CliRunner().invoke(app, [*arguments, "--tolerance", "0.5"])
    assert shown.exit_code == 0
    assert "predicted" in shown.output
    assert {found["system"] for found in json.loads(out.read_text())} >= {"autoregressive", "card"}
    for found in json.loads(out.read_text()):
        assert found["medians"] == (found["where"] == "grpc")
        if found["medians"]:
            assert found["measured_tokens_per_s"] == found["measured_median"]
    lines = shown.output.splitlines()
    places = {"median" in line for line in lines if " gRPC " in line}
    assert places == {True}, "a row says what it compares"
    assert any("in process" in line and "all texts" in line for line in lines)
    assert "Over: measured and predicted" in shown.output
    assert CliRunner().invoke(app, [*arguments, "--tolerance", "0"]).exit_code == 1


def test_what_holds_nothing_to_predict_is_refused(tmp_path: Path) -> None:
    others = json.loads(MEASURED.read_text())
    others["rows"] = [{**row, "system": "something else"} for row in others["rows"]]
    file, profile = tmp_path / "a.json", f"--profile={PROFILES / 'prompts.yaml'}"
    for content, said in (({}, "./scripts/bench"), (others, "no system in process")):
        file.write_text(json.dumps(content))
        found = CliRunner().invoke(app, ["check", str(file), profile])
        assert found.exit_code == 2
        assert said in found.stderr


@pytest.mark.parametrize(
    ("told", "taken"), [("bfloat16", "bfloat16"), ("float32", None), (None, None)]
)
def test_of_several_profiles_that_of_the_results_dtype_is_taken(
    tmp_path: Path, told: str | None, taken: str | None
) -> None:
    for name, dtype in (("a", "bfloat16"), ("b", None)):
        profile = PROFILE.model_copy(update={"dtype": dtype})
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(profile.model_dump()))
    result = Result.read(MEASURED).model_copy(update={"dtype": told})
    assert profile_of(result, tmp_path).dtype == taken


def test_a_profile_belongs_to_the_weights_of_a_gguf_file_too(
    tmp_path: Path,
) -> None:
    """Named by itself, or by the folder that holds it alone."""
    file = tmp_path / "target/model.gguf"
    file.parent.mkdir()
    file.write_bytes(b"weights")
    profile = PROFILE.model_copy(update={"target": weights_hash(file)})
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(profile.model_dump()))
    result = Result.read(MEASURED)
    model = result.settings.target.model_copy(update={"path": file.parent})
    result = result.model_copy(
        update={"settings": result.settings.model_copy(update={"target": model})}
    )
    assert profile_of(result, tmp_path) == profile
    file.write_bytes(b"other weights")
    with pytest.raises(PlanError, match="another target"):
        profile_of(result, tmp_path)


SIMULATED = {"specbranch", "ssd", "mcsd", "cascade", "gsd", "ouroboros"}
"""Those whose loops wait for a draft, and are simulated with settings of their own."""


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_of_the_family_can_be_predicted(system: str) -> None:
    result = Result.model_validate(few_texts())
    waits = next(row for row in result.rows if row.system == "draft_then_verify")
    row = waits.model_copy(update={"system": system, "gamma": 3, "width": 4, "rows": 4})
    assert row.built is not None
    if system in SIMULATED:
        assert 2.0 < compare(result, row, GREEDY).tokens_per_step <= 4.0


def test_a_device_far_away_takes_as_much_longer_as_its_bytes_do() -> None:
    result = Result.model_validate(few_texts())
    here = next(row for row in result.rows if row.system == "draft_then_verify")
    far = here.model_copy(update={"system": "sled", "where": "grpc", "forward_ms": None})
    near, away = (compare(result, row, GREEDY) for row in (here, far))
    assert away.tokens_per_step == pytest.approx(near.tokens_per_step, rel=0.2)
    ms_per_step = [1e3 * found.tokens_per_step / found.predicted for found in (near, away)]
    there_and_back = 2 * (20.0 + checking.SERVER_MS)
    assert ms_per_step[1] - ms_per_step[0] == pytest.approx(there_and_back, abs=6.0)
    assert not away.decides


def test_a_device_does_not_know_the_targets_noise() -> None:
    """Nor does it say how likely its tokens are."""
    record = GREEDY.texts[0].begun(4).model_copy(update={"ranks": "0.10", "likeliest": "1010"})
    known = GREEDY.model_copy(update={"temperature": 0.8, "texts": [record]})
    assert known.of_a_device().texts[0].ranks == "0.0."
    assert known.model_copy(update={"temperature": 0.0}).of_a_device().texts[0].ranks == "0..0"
    assert Text(record, known.of_a_device()).children(0) == [(0, 0.0, 0.0)]
    older = record.model_copy(update={"likeliest": None})
    with pytest.raises(PlanError, match="measure it again"):
        known.model_copy(update={"texts": [older]}).of_a_device()
