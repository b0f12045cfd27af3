"""The programs in front of Triton hold more connections than shells leave room for."""

from __future__ import annotations

import subprocess
import sys

import pytest
from real_pair import TARGET

PROGRAM = """
import resource
from card_guard import descriptors
from {package} import command
descriptors.MOST = 800
command.{server}.run = lambda *_, **__: print(*resource.getrlimit(resource.RLIMIT_NOFILE))
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
command.app({arguments}, standalone_mode=False)
"""
TOKENIZER = f"--tokenizer={TARGET}"


@pytest.mark.parametrize(
    ("package", "server", "arguments"),
    [("card_guard", "asyncio", []), ("card_gateway", "uvicorn", [TOKENIZER])],
)
@pytest.mark.parametrize(("soft", "hard", "expected"), [(300, 500, 500), (300, 1_000, 800)])
def test_it_asks_for_as_many_descriptors_as_it_may_have(
    package: str, server: str, arguments: list[str], soft: int, hard: int, expected: int
) -> None:
    program = PROGRAM.format(
        package=package, server=server, arguments=arguments, soft=soft, hard=hard
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert shown.stdout == f"{expected} {hard}\n", shown.stderr
