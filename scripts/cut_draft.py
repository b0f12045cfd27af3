#!/usr/bin/env python3
"""Cut a smaller draft out of a draft: `tools/training/cutting.py`."""

import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(_ROOT / "tools"), str(_ROOT / "python_backend")]

if __name__ == "__main__":
    from training.cutting import app

    app()
