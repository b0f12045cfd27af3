"""Tests of engines that are not ours. `scripts/test --guests` prepares and runs them."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("CARD_GUESTS") else ["*"]
