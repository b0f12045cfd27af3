"""A real Prometheus for tests: Debian's, scraping what it is told to, with the rules we ship."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from debian_package import prometheus_programs

from card.settings import REPOSITORY_ROOT
from loading.supervised import reserved_ports

RULES = REPOSITORY_ROOT / "deploy/prometheus/card.rules.yml"
START_S = 30.0


def check_with_promtool(*arguments: str | Path, stdin: str = "") -> str:
    """What promtool says; fails if it complains."""
    command = [prometheus_programs() / "promtool", *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@dataclass(frozen=True)
class Prometheus:
    """Where it listens."""

    url: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an instant query, each with `metric` and `value`; NaNs are none."""
        result = self._get("query", query=expression)["result"]
        return [sample for sample in result if sample["value"][1] != "NaN"]

    def rules(self) -> list[dict[str, Any]]:
        """All alert rules as it evaluated them."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _get(self, endpoint: str, **parameters: str) -> Any:
        address = f"{self.url}/api/v1/{endpoint}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error


@contextlib.contextmanager
def running_prometheus(folder: Path, targets: list[str]) -> Iterator[Prometheus]:
    """The configuration that we ship, but these targets, and every second."""
    content = yaml.safe_load((REPOSITORY_ROOT / "deploy/prometheus/prometheus.yml").read_text())
    content["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    content["rule_files"] = [str(RULES)]
    (job,) = content["scrape_configs"]
    job["static_configs"] = [{"targets": targets}]
    configuration = folder / "prometheus.yml"
    configuration.write_text(yaml.safe_dump(content))
    with reserved_ports(1) as (port,):
        address = f"127.0.0.1:{port}"
        log = folder / "prometheus.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    prometheus_programs() / "prometheus",
                    f"--config.file={configuration}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address={address}",
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        prometheus = Prometheus(f"http://{address}")
        try:
            limit = time.monotonic() + START_S
            while not prometheus.is_ready():
                ended = process.poll()
                assert ended is None, log.read_text()
                assert time.monotonic() < limit, log.read_text()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.1)
            yield prometheus
        finally:
            process.terminate()
            process.wait()
