#!/usr/bin/env python3
"""Train drafts and heads for a target: `tools/training/command.py`."""

import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(_ROOT / folder) for folder in ("benchmarks", "tools", "python_backend")]

if __name__ == "__main__":
    from training.command import app

    app()
