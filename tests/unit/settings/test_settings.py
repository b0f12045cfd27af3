"""Where the values of settings come from: defaults, a file, the environment, the call."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from settings_files import Write

from card.settings import (
    REPOSITORY_ROOT,
    SETTINGS_VARIABLE,
    freeze,
    in_ascii,
    load_settings,
    without_settings,
)
from model_files import model_files_of

pytestmark = pytest.mark.usefixtures("no_overrides")


def test_defaults_run_the_chat_pair_on_a_processor() -> None:
    settings = load_settings()
    for model in (settings.target, settings.draft):
        assert model.device == "cpu"
        assert model_files_of(model.path).config()["vocab_size"] == 49_152
    assert settings.target.path != settings.draft.path
    assert settings.decoding == "auto"


def test_variables_name_the_file_and_win_over_it_and_over_the_call(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write("limits: {max_tokens: 300, queued_requests: 5}\nspeculation: {rows: 8, width: 3}")
    for name, value in (("LIMITS__MAX_TOKENS", "400"), ("SPECULATION__ROWS", "auto"),
                        ("TARGET__THREADS", "2"), ("CACHE__SLOTS", "3")):  # fmt: skip
        monkeypatch.setenv(f"CARD_{name}", value)
    monkeypatch.setenv(SETTINGS_VARIABLE, str(file))
    settings = load_settings(cache={"slots": 4, "nodes": 100})
    assert (settings.limits.max_tokens, settings.limits.queued_requests) == (400, 5)
    assert (settings.speculation.rows, settings.speculation.width) == ("auto", 3)
    assert (settings.target.threads, settings.cache.slots, settings.cache.nodes) == (2, 3, 100)


def test_relative_paths_start_at_the_files_folder(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no file, or it names none, at the repository."""
    monkeypatch.chdir("/")
    settings = load_settings(
        write(
            "draft: {path: ../draft}\ncache: {directory: shm}\n"
            "serving: {calibration_cache: known, tritonserver: bin/tritonserver}"
        )
    )
    assert settings.draft.path == tmp_path.parent / "draft"
    assert settings.serving.calibration_cache == tmp_path / "known"
    assert settings.serving.tritonserver == tmp_path / "bin/tritonserver"
    assert settings.cache.directory == tmp_path / "shm"
    (target,) = (REPOSITORY_ROOT / "models/target").glob("*.gguf")
    assert settings.target.path == target
    monkeypatch.setenv("CARD_DRAFT__PATH", "models/other")
    assert load_settings().draft.path == REPOSITORY_ROOT / "models/other"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "target: {path: elsewhere, threads: 2}\nserving: {calibration_cache: kept, flush_ms: 3}\n",
        "engine: tensorrt_llm\ndraft: {tensorrt_llm: {devices: [1]}}\nlimits: {max_tokens: 9}\n",
    ],
)
def test_frozen_settings_are_read_as_they_were_whatever_the_environment_says(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("CARD_SPECULATION__WIDTH", "7")
    monkeypatch.setenv("CARD_DRAFT__PATH", "beside")
    settings = load_settings(write(text))
    frozen = tmp_path / "run" / "settings.yaml"
    frozen.parent.mkdir()
    freeze(settings, frozen)
    environment = without_settings(os.environ | {"CARD_LIMITS": "{}", "CARD_RUN": "kept"})
    assert environment["CARD_RUN"] == "kept"
    assert environment["PATH"] == os.environ["PATH"]
    for name in set(os.environ) - set(environment):
        monkeypatch.delenv(name)
    again = load_settings(frozen)
    assert again.model_dump() == settings.model_dump()
    assert again.speculation.width == 7
    assert again.draft.path == tmp_path / "beside"


PRINT_PATHS = """
from card.settings import load_settings
settings = load_settings()
for path in (settings.target.path, settings.serving.calibration_cache):
    print(ascii(str(path)), (path / "config.json").exists())
"""


def test_frozen_paths_can_be_opened_where_names_of_files_are_ascii(
    write: Write, tmp_path: Path
) -> None:
    """As in Triton's stubs, whose Python takes the C locale."""
    named = tmp_path / "Modelle für José"
    named.mkdir()
    (named / "config.json").touch()
    settings = load_settings(
        write(f"target: {{path: {named}}}\nserving: {{calibration_cache: {named}/x}}")
    )
    run = tmp_path / "run"
    run.mkdir()
    freeze(in_ascii(settings, run), run / "settings.yaml")
    ended = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-c", PRINT_PATHS],
        env={
            "PYTHONPATH": os.pathsep.join(sys.path),
            "CARD_SETTINGS": str(run / "settings.yaml"),
            "LC_ALL": "C",
            "PYTHONCOERCECLOCALE": "0",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.splitlines() == [
        f"'{run}/target.path' True",
        f"'{run}/serving.calibration_cache' False",
    ]


def test_a_pair_without_a_draft_loads_the_target_alone(write: Write) -> None:
    for text in ("draft: null\n", "speculation: {drafter: ngram}\n"):
        settings = load_settings(write(text))
        assert settings.drafter == "ngram"
        assert settings.roles == ("target",)
    assert load_settings().roles == ("draft", "target")


def test_null_in_a_variable_means_what_null_in_a_file_means(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("DRAFT", "SPECULATION__NGRAM_TABLE", "TARGET__THREADS_ALONE"):
        monkeypatch.setenv(f"CARD_{name}", "null")
    settings = load_settings()
    assert settings.roles == ("target",)
    assert settings.speculation.ngram_table is None
    assert settings.target.threads_alone is None
