#!/usr/bin/env python3
"""List the ids that a draft ranks: `tools/training/draft_vocabulary.py`."""

import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(_ROOT / "tools"), str(_ROOT / "python_backend")]

if __name__ == "__main__":
    from training.draft_vocabulary import app

    app()
