"""A supervisor asks for as many descriptors as it may have, for itself and all that it starts."""

from __future__ import annotations

import subprocess
import sys

import pytest

RAISED = """
import resource, subprocess, sys
from card.serving.supervision import descriptors
descriptors.MOST = 800
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
print(descriptors.raise_limit())
inherited = "import resource; print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
sys.stdout.flush()
subprocess.run([sys.executable, "-c", inherited], check=True)
"""


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [(64, 500, 500), (64, 1_000, 800), (900, 1_000, 900)],
    ids=["all there are", "no more than are needed", "never fewer"],
)
def test_the_limit_is_raised_for_children_too(soft: int, hard: int, expected: int) -> None:
    shown = subprocess.run(
        [sys.executable, "-c", RAISED.format(soft=soft, hard=hard)],
        capture_output=True,
        text=True,
        check=True,
    )
    raised, inherited = shown.stdout.splitlines()
    assert int(raised) == expected
    assert inherited == f"{expected} {hard}"
