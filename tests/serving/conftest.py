"""One service for all tests that do not harm it, and a way to start others with other settings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest
from running_service import Overrides, RunningService, StartService, running_service


@pytest.fixture(scope="session", autouse=True)
def _findings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What models find out at load takes most of a start: services of equal settings share it."""
    everything = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        everything = everything.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CARD_SERVING__FINDINGS", str(everything / "findings"))
        yield


@pytest.fixture(scope="session")
def start_service(tmp_path_factory: pytest.TempPathFactory) -> StartService:
    """`with start_service({"cache": {"slots": 2}}) as service: ...`"""

    def start(overrides: Overrides) -> AbstractContextManager[RunningService]:
        return running_service(tmp_path_factory.mktemp("service"), overrides)

    return start


@pytest.fixture(scope="session")
def server(start_service: StartService) -> Iterator[RunningService]:
    """The defaults with the bundled pair, findings included. Tests that kill its processes start
    their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CARD_SERVING__FINDINGS")
        with start_service({}) as service:
            patch.undo()
            yield service
