"""docker-compose.yml as Compose reads it."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from programs import program

from card.settings import REPOSITORY_ROOT

FILE = REPOSITORY_ROOT / "docker-compose.yml"
PROFILES = ("cpu", "gpu", "openai", "monitoring")

Service = dict[str, Any]


def compose(
    file: Path,
    profiles: Sequence[str],
    variables: Mapping[str, str] | None = None,
    *,
    overridden_by: Path | None = None,
) -> dict[str, Service]:
    """The services of the file, with `variables` and none of ours from the environment."""
    more = () if overridden_by is None else ("--file", str(overridden_by))
    asked = (f"--profile={profile}" for profile in profiles)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CARD_")}
    answer = subprocess.run(
        [program("docker-compose", "docker-compose"), "--file", str(file), *more, *asked, "config"],
        env=kept | dict(variables or {}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    services: dict[str, Service] = yaml.safe_load(answer.stdout)["services"]
    return services


@functools.cache
def services(*variables: tuple[str, str]) -> dict[str, Service]:
    """All services, of every profile."""
    return compose(FILE, PROFILES, dict(variables))


def mounts(service: Service) -> dict[str, tuple[Path, bool]]:
    """Source and whether it is read-only, by path in the container; Compose 1 and 2 differ."""
    found = {}
    for mount in service["volumes"]:
        if isinstance(mount, str):
            source, target, *mode = mount.split(":")
            found[target] = Path(source), mode == ["ro"]
        else:
            found[mount["target"]] = Path(mount["source"]), mount.get("read_only", False)
    return found


def ports(service: Service) -> dict[int, str]:
    """Address on the host by port, which is the same in the container."""
    found = {}
    for port in service.get("ports", ()):
        if isinstance(port, str):
            address, published, target = port.removesuffix("/tcp").split(":")
        else:
            address, published, target = port["host_ip"], port["published"], port["target"]
        assert int(published) == int(target)
        found[int(target)] = address
    return found


def seconds(duration: str) -> float:
    minutes, seconds = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", duration).groups()  # type: ignore[union-attr]
    return 60 * int(minutes or 0) + int(seconds or 0)
