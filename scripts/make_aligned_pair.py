#!/usr/bin/env python3
"""Make a random pair that agrees at a chosen rate: `tools/aligned/command.py`."""

import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(_ROOT / "tools"), str(_ROOT / "python_backend")]

if __name__ == "__main__":
    from aligned.command import app

    app()
