"""`scripts/trtllm_check`: from settings to a verdict, with the stand-in in NVIDIA's place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml
from real_pair import DRAFT, TARGET

from card.settings import REPOSITORY_ROOT

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "standin"))
from installation import make_environment


def test_trtllm_check_when_the_pair_is_served_compares_it_with_the_engines_own_modes(
    tmp_path: Path,
) -> None:
    settings = tmp_path / "settings.yaml"
    content = {
        "engine": "tensorrt_llm",
        "target": {"path": str(TARGET)},
        "draft": {"path": str(DRAFT)},
        "speculation": {"rows": 8, "depth": 16},
        "cache": {"slots": 2},
        "limits": {"prompt_tokens": 256, "max_tokens": 256, "context_tokens": 512},
    }
    settings.write_text(yaml.safe_dump(content))
    python = make_environment(tmp_path)
    done = subprocess.run(
        [REPOSITORY_ROOT / "scripts/trtllm_check", settings, "--limit=2", "--max-tokens=256"],
        env=os.environ | {"PYTHON": str(python)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS" in done.stdout.splitlines()[-1]
    for system in ("plain", "draft-target", "autoregressive", "card"):
        (row,) = (line for line in done.stdout.splitlines() if f", {system}  " in line)
        assert row.rstrip().endswith("none"), row
