"""`scripts/trtllm_check`: from a pair to a verdict, with the stand-in in NVIDIA's place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from real_pair import DRAFT, TARGET

from card.settings import REPOSITORY_ROOT

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "standin"))
from installation import make_environment


def run(python: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [REPOSITORY_ROOT / "scripts/trtllm_check", "--target", TARGET, "--draft", DRAFT]
    return subprocess.run(
        [str(each) for each in (*command, *arguments)],
        env=os.environ | {"PYTHON": str(python)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_pair_is_judged_when_it_was_served_compared_and_killed(tmp_path: Path) -> None:
    results = tmp_path / "found.json"
    python = make_environment(tmp_path, "1.2.1")
    done = run(python, "--limit", 2, "--max-tokens", 256, "--results", results)
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads(results.read_text())
    assert written["passed"]
    assert written["verdict"] == done.stdout.splitlines()[-1]
    assert "says nothing of TensorRT-LLM" in written["verdict"]
    checked = {check["name"] for check in written["checks"]}
    assert checked >= {"texts", "streams", "metrics", "killed draft", "killed target"}
    systems = {speed["system"] for speed in written["speeds"]}
    assert systems >= {"ours, card", "NVIDIA's own, plain", "NVIDIA's own, draft-target"}
