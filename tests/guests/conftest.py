"""Programs of other projects, each in its own environment. `scripts/test --guests` runs these."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests" / "serving")]
collect_ignore_glob = [] if os.environ.get("CARD_GUESTS") else ["*"]
