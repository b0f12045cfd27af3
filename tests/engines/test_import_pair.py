"""`scripts/import_pair`: what it says of good and bad pairs, and the settings it writes."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf_models
import psutil
import pytest
import torch
from real_pair import DRAFT, TARGET
from safetensors.torch import load_file, save_file
from small_heads import save_random_head
from typer.testing import CliRunner, Result

from card.engines import EngineError
from card.engines.architecture import read_architecture
from card.engines.checkpoints import open_checkpoint
from card.settings import load_settings
from importing.command import app

VOCABULARY: int = json.loads((TARGET / "config.json").read_text(encoding="utf-8"))["vocab_size"]
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
    pair: dict[str, Path], tmp_path: Path
) -> None:
    file = tmp_path / "pair.yaml"
    result = run(pair, f"--settings={file}", "--limit=2", "--max-tokens=24")
    assert result.exit_code == 0, result.output
    assert "│ no " not in result.stdout
    agreement = re.search(r"Agreement: (0\.\d+) of 48 tokens", result.stdout)
    assert agreement is not None
    assert 0.4 < float(agreement[1]) < 1.0
    prediction = re.search(r"Arithmetic, not measured: (\d+\.\d+) times", result.stdout)
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
    refused(pair, tmp_path, "one vocabulary", "must share a vocabulary")


def test_a_family_that_only_vllm_may_know_is_given_that_engine(
    pair: dict[str, Path], tmp_path: Path
) -> None:
    edit(pair["target"], "config.json", lambda it: it.update(model_type="mixtral"))
    file = tmp_path / "pair.yaml"
    result = run(pair, f"--settings={file}")
    assert result.exit_code == 0, result.output
    assert "'mixtral' is not supported" in found(result, "target's family")
    assert "Agreement is not measured" in result.stdout
    settings = load_settings(file)
    assert (settings.draft.engine, settings.target.engine) == ("auto", "vllm")


def test_the_shorter_context_bounds_the_pair(pair: dict[str, Path], tmp_path: Path) -> None:
    edit(pair["draft"], "config.json", lambda it: it.update(max_position_embeddings=512))
    file = tmp_path / "pair.yaml"
    result = run(pair, "--no-measure", f"--settings={file}", "--context=800")
    assert "the draft's 512 positions" in found(result, "context length")
    assert load_settings(file).limits.context_tokens == 512
    run(pair, "--no-measure", f"--settings={file}", "--context=300", "--force")
    assert load_settings(file).limits.context_tokens == 300


def test_a_pair_that_does_not_fit_into_memory_is_not_measured(
    pair: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    little = psutil.virtual_memory()._replace(available=1 << 20)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: little)
    result = run(pair)
    assert result.exit_code == 0
    assert "Agreement is not measured: both models need about" in result.stdout


def pad_vocabulary(directory: Path, size: int) -> None:
    """Give a model rows for ids that no token has."""
    edit(directory, "config.json", lambda it: it.update(vocab_size=size))
    file = directory / "model.safetensors"
    tensors = load_file(file)
    file.unlink()  # a link to the model that ships
    rows = tensors["model.embed_tokens.weight"]
    more = rows[:1].expand(size - len(rows), -1)
    save_file(tensors | {"model.embed_tokens.weight": torch.cat([rows, more])}, file)


def test_what_a_pair_can_be_served_with_is_noted_and_it_is_measured(pair: dict[str, Path]) -> None:
    pad_vocabulary(pair["draft"], VOCABULARY + 108)
    for role in pair:
        edit(pair[role], "generation_config.json", lambda it: it.update(eos_token_id=1))
    result = run(pair, "--limit=1", "--max-tokens=8")
    assert result.exit_code == 0, result.output
    row = found(result, "one vocabulary")
    assert "│ note " in row
    assert f"the draft has {VOCABULARY + 108} ids and the target {VOCABULARY}" in row
    row = found(result, "special tokens")
    assert "│ note " in row
    assert "[1] by its generation_config, [0] by its config, [0] by its tokenizer" in row
    assert "Agreement: " in result.stdout


def gptq(model: Path) -> None:
    quantisation = {"quant_method": "gptq", "bits": 4}
    edit(model, "config.json", lambda it: it.update(quantization_config=quantisation))


def awq_beside(model: Path) -> None:
    (model / "quant_config.json").write_text("{}", encoding="utf-8")


def fp8(model: Path) -> None:
    file = model / "model.safetensors"
    header, rest = header_of(file.read_bytes())
    file.unlink()
    embedding = header["model.embed_tokens.weight"]
    embedding |= {"dtype": "F8_E4M3", "shape": [embedding["shape"][0] * 2, embedding["shape"][1]]}
    content = json.dumps(header).encode()
    file.write_bytes(len(content).to_bytes(8, "little") + content + rest)


def header_of(content: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def packed(model: Path) -> None:
    file = model / "model.safetensors"
    tensors = load_file(file)
    file.unlink()
    tensors["model.layers.0.self_attn.q_proj.qweight"] = torch.zeros(4, 4, dtype=torch.int32)
    save_file(tensors, file)


@pytest.mark.parametrize(
    ("role", "quantise"),
    [("draft", gptq), ("target", awq_beside), ("target", fp8), ("draft", packed)],
)
def test_a_quantised_checkpoint_is_refused_as_that_before_settings_are_written(
    pair: dict[str, Path], tmp_path: Path, role: str, quantise: Callable[[Path], None]
) -> None:
    quantise(pair[role])
    refused(pair, tmp_path, f"{role}'s family", "the checkpoint is quantised")
    with pytest.raises(EngineError, match="the checkpoint is quantised"):
        open_checkpoint(pair[role], read_architecture(pair[role]))


def refused(pair: dict[str, Path], folder: Path, need: str, said: str) -> None:
    """The table says no, and why; no settings are written."""
    file = folder / "pair.yaml"
    result = run(pair, f"--settings={file}")
    assert result.exit_code == 1, result.output
    assert "│ no " in found(result, need)
    assert said in result.stdout
    assert not file.exists()


def test_gguf_files_are_taken_for_either_model(tmp_path: Path) -> None:
    tokens = ["a", "b", "ab", *(f"t{index}" for index in range(91)), "<s>", "</s>"]
    about = gguf_models.with_tokens(tokens, [1] * 94 + [3, 3], merges=["a b"], eos_token_id=95)
    (tmp_path / "folder").mkdir()
    pair = {"draft": tmp_path / "draft.gguf", "target": tmp_path / "folder/target.gguf"}
    for path in pair.values():
        kinds = {"": "Q4_1", "attn_v.weight": "Q6_K"}
        gguf_models.write(path, "llama", kinds, metadata=about)
    file = tmp_path / "pair.yaml"
    named = {**pair, "target": tmp_path / "folder"}  # as settings take it, too
    result = run(named, "--no-measure", f"--settings={file}")
    assert result.exit_code == 0, result.output
    assert "96 ids, the same tokens" in found(result, "one vocabulary")
    assert "texts end at id 95" in found(result, "special tokens")
    assert "Q4_1 is kept as 4 bits" in found(result, "target's tensors")
    assert (
        "Q6_K is kept as 8 bits, each weight moved by at most half a step: attn_v" in result.output
    )
    assert load_settings(file).target.path == pair["target"]


def no_model(pair: dict[str, Path]) -> None:
    pair["target"] = pair["target"].with_suffix(".gguf")
    pair["target"].write_bytes(b"GGUF")


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ messages[0].content }}", "yes"),
        ("{{ 1 | from_json }}", "No filter named 'from_json'"),
        ("{{ tools | length }}", "has no len()"),
    ],
)
def test_the_chat_template_is_tried(pair: dict[str, Path], template: str, said: str) -> None:
    (pair["target"] / "chat_template.jinja").write_text(template, encoding="utf-8")
    result = run(pair, "--no-measure")
    assert result.exit_code == 0
    assert said in found(result, "chat template")


def without(name: str) -> Callable[[dict[str, Path]], None]:
    return lambda pair: (pair["target"] / name).unlink()


@pytest.mark.parametrize(
    ("spoil", "options", "said"),
    [
        (without("config.json"), [], "config.json"),
        (without("tokenizer.json"), [], "tokenizer.json"),
        (without("model.safetensors"), [], "*.safetensors"),
        (no_model, [], "not a sound GGUF file"),
        (lambda pair: None, ["--prompts=/dev/null"], "no prompt"),
    ],
)
def test_what_cannot_be_read_is_named_in_one_line(
    pair: dict[str, Path],
    spoil: Callable[[dict[str, Path]], None],
    options: list[str],
    said: str,
) -> None:
    spoil(pair)
    result = run(pair, *options)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.fixture
def head(tmp_path: Path) -> Path:
    """A random head for the target."""
    folder = tmp_path / "head"
    save_random_head(folder, TARGET)
    return folder


def import_head(head: Path, *options: str) -> Result:
    arguments = [str(TARGET), f"--draft={head}", *options]
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})


def test_head_is_described_and_measured(head: Path, tmp_path: Path) -> None:
    file = tmp_path / "pair.yaml"
    result = import_head(head, f"--settings={file}", "--limit=2", "--max-tokens=16")
    assert result.exit_code == 0, result.output
    assert "eagle3: 1 layer of 192" in found(result, "head")
    assert "2, 3, 3 of 0 (embeddings) to 6" in found(result, "hidden states")
    assert "1.2 kB of states a token, 0.6 MB a slot" in found(result, "cost")
    assert re.search(r"Of blocks of 6 the target accepts \d\.\d\d tokens", result.stdout)
    assert load_settings(file).drafter == "eagle3"


def test_head_is_refused_when_it_reads_states_that_the_target_lacks(head: Path) -> None:
    edit(head, "config.json", lambda c: c.update(eagle_aux_hidden_state_layer_ids=[2, 9, 3]))
    result = import_head(head)
    assert result.exit_code == 1
    assert "not 9" in found(result, "hidden states")


def test_lone_model_is_refused_with_both_ways_to_name_a_pair() -> None:
    result = CliRunner().invoke(app, [str(TARGET)])
    assert result.exit_code == 2
    assert "TARGET --draft DRAFT" in result.stderr
