"""One service for all tests that do not harm it, and a way to start others with other settings."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from certificates import Certificates
from running_service import Overrides, RunningService, StartService, running_service

MOST_LINES = 40
"""Of each log beside a failure."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What services said while a test failed stands beside what the test says.

    That they answered is left out: a crash or a restart would drown in it.
    """
    report = yield
    if report.failed:
        everything: Path = item.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        for log in sorted(everything.glob("**/service.log")):
            if log.stat().st_mtime >= call.start:
                lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
                told = [line for line in lines if " event=answered " not in line]
                report.sections.append((f"{log}", "\n".join(told[-MOST_LINES:])))
    return report


@pytest.fixture(scope="session", autouse=True)
def _shared_calibration(calibration_cache: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CARD_SERVING__CALIBRATION_CACHE", str(calibration_cache))
        yield


@pytest.fixture(scope="session")
def start_service(tmp_path_factory: pytest.TempPathFactory) -> StartService:
    """`with start_service({"cache": {"slots": 2}}) as service: ...`"""

    def start(overrides: Overrides) -> AbstractContextManager[RunningService]:
        return running_service(tmp_path_factory.mktemp("service"), overrides)

    return start


@pytest.fixture(scope="session")
def server(start_service: StartService) -> Iterator[RunningService]:
    """The defaults with the pair of `tests/pair`. Tests that kill its processes start their own."""
    with start_service({}) as service:
        yield service


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(autouse=True)
def _server_is_ready(request: pytest.FixtureRequest) -> None:
    """A test that ended Triton is not the end of those behind it."""
    if "server" in request.fixturenames:
        service: RunningService = request.getfixturevalue("server")
        service.await_ready()
