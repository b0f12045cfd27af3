"""`scripts/import_pair`: what it says of good and bad pairs, and the settings it writes."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from real_pair import DRAFT, TARGET
from typer.testing import CliRunner, Result

from card.engines import calibration
from card.settings import load_settings
from importing.command import app

Edit = Callable[[dict[str, Any]], Any]


@pytest.fixture
def pair(tmp_path: Path) -> dict[str, Path]:
    """Copies whose small files may be edited; the weights are links."""
    copies = {}
    for role, source in (("draft", DRAFT), ("target", TARGET)):
        copies[role] = tmp_path / role
        copies[role].mkdir()
        for file in source.iterdir():
            if file.suffix == ".json":
                shutil.copy(file, copies[role])
            else:
                (copies[role] / file.name).symlink_to(file)
    return copies


def edit(directory: Path, name: str, change: Edit) -> None:
    file = directory / name
    content = json.loads(file.read_text(encoding="utf-8"))
    change(content)
    file.write_text(json.dumps(content), encoding="utf-8")


def run(pair: dict[str, Path], *options: str) -> Result:
    arguments = [str(pair["draft"]), str(pair["target"]), *options]
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})


def found(result: Result, need: str) -> str:
    """What the table says of one need."""
    (row,) = (line for line in result.stdout.splitlines() if re.match(rf"│ {need} +│", line))
    return row


def test_a_good_pair_is_measured_and_its_settings_are_the_servers(
    pair: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "is_faster_alone", lambda _: True)  # it is no question here
    file = tmp_path / "pair.yaml"
    result = run(pair, f"--settings={file}", "--limit=2", "--max-tokens=24")
    assert result.exit_code == 0, result.output
    assert "│ no " not in result.stdout
    agreement = re.search(r"Agreement: (0\.\d+) of 48 tokens", result.stdout)
    assert agreement is not None
    assert 0.4 < float(agreement[1]) < 1.0
    prediction = re.search(r"Predicted, not measured: (\d+\.\d+) times", result.stdout)
    assert prediction is not None
    assert float(prediction[1]) > 0
    settings = load_settings(file)
    assert settings.draft.path == pair["draft"]
    assert settings.target.path == pair["target"]
    assert (settings.draft.engine, settings.target.engine) == ("auto", "auto")


def test_settings_go_to_the_screen_or_into_a_new_file(
    pair: dict[str, Path], tmp_path: Path
) -> None:
    shown = run(pair, "--no-measure")
    assert f"path: {pair['target']}" in shown.stdout
    file = tmp_path / "pair.yaml"
    file.write_text("mine", encoding="utf-8")
    refused = run(pair, "--no-measure", f"--settings={file}")
    assert refused.exit_code == 2
    assert "--force" in refused.stderr
    assert file.read_text(encoding="utf-8") == "mine"
    assert run(pair, "--no-measure", f"--settings={file}", "--force").exit_code == 0
    assert load_settings(file).target.path == pair["target"]


def rename_a_token(tokenizer: dict[str, Any]) -> None:
    vocabulary = tokenizer["model"]["vocab"]
    token = next(token for token, identity in vocabulary.items() if identity == 300)
    vocabulary["renamed"] = vocabulary.pop(token)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tokenizer.json", rename_a_token),
        ("tokenizer.json", lambda it: it["added_tokens"][0].update(content="<other>")),
        ("config.json", lambda it: it.update(vocab_size=3071)),
    ],
)
def test_another_vocabulary_is_refused(
    pair: dict[str, Path], tmp_path: Path, name: str, change: Edit
) -> None:
    edit(pair["draft"], name, change)
    file = tmp_path / "pair.yaml"
    result = run(pair, f"--settings={file}")
    assert result.exit_code == 1
    assert "│ no " in found(result, "one vocabulary")
    assert "must share a vocabulary" in result.stdout
    assert "cannot be served together" in result.stdout
    assert not file.exists()


def test_an_end_token_of_its_own_is_noted(pair: dict[str, Path]) -> None:
    edit(pair["draft"], "generation_config.json", lambda it: it.update(eos_token_id=[1, 2]))
    row = found(run(pair, "--no-measure"), "special tokens")
    assert "│ note " in row
    assert "eos_token_id is [1, 2] and [0]" in row


def test_a_family_of_tensorrt_llm_is_given_that_engine(
    pair: dict[str, Path], tmp_path: Path
) -> None:
    edit(pair["target"], "config.json", lambda it: it.update(model_type="mixtral"))
    file = tmp_path / "pair.yaml"
    result = run(pair, f"--settings={file}")
    assert result.exit_code == 0, result.output
    assert "'mixtral' is not supported" in found(result, "target's family")
    assert "Agreement is not measured" in result.stdout
    settings = load_settings(file)
    assert (settings.draft.engine, settings.target.engine) == ("auto", "tensorrt_llm")
    assert "devices" in file.read_text()  # said, so that it is seen to be changed


def test_two_such_models_are_given_a_device_each(pair: dict[str, Path], tmp_path: Path) -> None:
    for role in pair:
        edit(pair[role], "config.json", lambda it: it.update(model_type="mixtral"))
    file = tmp_path / "pair.yaml"
    assert run(pair, f"--settings={file}").exit_code == 0
    settings = load_settings(file)
    assert settings.target.tensorrt_llm.devices == (0,)
    assert settings.draft.tensorrt_llm.devices == (1,)


def test_the_shorter_context_bounds_the_pair(pair: dict[str, Path], tmp_path: Path) -> None:
    edit(pair["draft"], "config.json", lambda it: it.update(max_position_embeddings=512))
    file = tmp_path / "pair.yaml"
    result = run(pair, "--no-measure", f"--settings={file}", "--context=800")
    assert "the draft's 512 positions" in found(result, "context length")
    assert load_settings(file).limits.context_tokens == 512
    run(pair, "--no-measure", f"--settings={file}", "--context=300", "--force")
    assert load_settings(file).limits.context_tokens == 300


def test_a_chat_template_is_found_in_either_place(pair: dict[str, Path]) -> None:
    assert "│ note " in found(run(pair, "--no-measure"), "chat template")
    edit(pair["target"], "tokenizer_config.json", lambda it: it.update(chat_template="{{ x }}"))
    assert "│ yes " in found(run(pair, "--no-measure"), "chat template")
    edit(pair["target"], "tokenizer_config.json", lambda it: it.pop("chat_template"))
    (pair["target"] / "chat_template.jinja").write_text("{{ x }}", encoding="utf-8")
    assert "│ yes " in found(run(pair, "--no-measure"), "chat template")


def test_a_pair_that_does_not_fit_into_memory_is_not_measured(
    pair: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    little = psutil.virtual_memory()._replace(available=1 << 20)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: little)
    result = run(pair)
    assert result.exit_code == 0
    assert "Agreement is not measured: both models need about" in result.stdout


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(pair: dict[str, Path], missing: str) -> None:
    (pair["target"] / missing).unlink()
    result = run(pair)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert missing.replace("model.", "*.") in result.stderr


def test_prompts_that_cannot_be_used_are_refused(pair: dict[str, Path], tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"text": "no prompt"}\n', encoding="utf-8")
    result = run(pair, f"--prompts={prompts}")
    assert result.exit_code == 2
    assert "line 1" in result.stderr
