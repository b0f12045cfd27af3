"""The list of ids that a draft ranks, written by its command."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from real_pair import DRAFT

from card.settings import REPOSITORY_ROOT


def test_the_command_lists_the_most_frequent_ids_without_transformers(tmp_path: Path) -> None:
    """Which only training and tests install."""
    draft = tmp_path / "draft"
    shutil.copytree(DRAFT, draft)
    texts = tmp_path / "texts.npy"
    np.save(texts, np.array([[7, 7, 7, 3], [3, 9, 3, 7]], np.int32))
    script = str(REPOSITORY_ROOT / "scripts/draft_vocabulary.py")
    run = (
        "import runpy, sys; sys.modules['transformers'] = None; sys.argv = sys.argv[1:]; "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    command = [sys.executable, "-c", run, script, str(draft), str(texts), "--ids", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((draft / "draft_vocabulary.json").read_text()) == {"ids": [3, 7]}
