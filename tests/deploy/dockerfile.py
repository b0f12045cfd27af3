"""deploy/Dockerfile, stage by stage."""

from __future__ import annotations

import ast
import functools
import io
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dockerfile_parse import DockerfileParser

from card.settings import REPOSITORY_ROOT

DOCKERFILE = REPOSITORY_ROOT / "deploy/Dockerfile"


@dataclass(frozen=True)
class Stage:
    """One FROM and what follows it.

    Attributes:
        base: the image that it begins with, build arguments filled in.
        instructions: (instruction, value) in order.
    """

    base: str
    instructions: list[tuple[str, str]]

    def all(self, instruction: str) -> list[str]:
        return [value for name, value in self.instructions if name == instruction]

    def last(self, instruction: str) -> str:
        return self.all(instruction)[-1]

    def words(self, instruction: str) -> list[str]:
        """The last value in exec form."""
        return list(json.loads(self.last(instruction)))


@functools.cache
def stages() -> dict[str, Stage]:
    """All named stages."""
    parser = DockerfileParser(fileobj=io.BytesIO(DOCKERFILE.read_bytes()))
    arguments: dict[str, str] = {}
    found: dict[str, Stage] = {}
    instructions: list[tuple[str, str]] = []
    step: dict[str, Any]
    for step in parser.structure:
        name, value = str(step["instruction"]), str(step["value"])
        if name == "COMMENT":
            continue
        if name == "FROM":
            base, stage = re.fullmatch(r"(\S+) AS (\S+)", value).groups()  # type: ignore[union-attr]
            for argument, default in arguments.items():
                base = base.replace(f"${{{argument}}}", default)
            instructions = []
            found[stage] = Stage(base, instructions)
        elif name == "ARG" and not found:
            argument, _, default = value.partition("=")
            arguments[argument] = default
        else:
            instructions.append((name, value))
    return found


def imported_packages(package: Path) -> set[str]:
    """Top-level names of everything that a package imports, wherever it does, but its own and the
    standard library's."""
    names = set()
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    return names - set(sys.stdlib_module_names) - {package.name}
