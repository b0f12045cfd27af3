"""What is said before a request is let in: by files that are there or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from card.engines import EngineError
from card.serving.requests.refusal import Refusal, queue_full
from card.serving.supervision.load_failure import announced
from card.serving.supervision.notices import NOTICES_VARIABLE, Notices
from card.serving.supervision.residue import RunDirectory


def test_a_notice_stands_until_it_is_withdrawn(tmp_path: Path) -> None:
    written, read = Notices(tmp_path).queue_full, Notices(tmp_path).queue_full
    assert not read.stands
    written.post()
    written.post()
    assert read.stands
    assert not Notices(tmp_path).draining.stands
    written.withdraw()
    written.withdraw()
    assert not read.stands


def test_a_notice_says_what_was_posted_last(tmp_path: Path) -> None:
    notice = Notices(tmp_path).load_failed
    assert notice.text == ""
    notice.post("no weights")
    notice.post("Gewichte fehlen: ö")
    assert Notices(tmp_path).load_failed.text == "Gewichte fehlen: ö"
    assert Notices(None).load_failed.text == ""


def test_a_model_that_cannot_be_loaded_tells_the_supervisor_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @announced
    def initialize(model: object, args: dict[str, str]) -> None:
        raise EngineError("this engine does not compute in int8")

    monkeypatch.setenv(NOTICES_VARIABLE, str(tmp_path))
    with pytest.raises(EngineError):
        initialize(object(), {"model_name": "target"})
    why = "target cannot be loaded: this engine does not compute in int8"
    assert Notices(tmp_path).load_failed.text == why


def test_a_draining_service_refuses_with_words_of_its_own(tmp_path: Path) -> None:
    notices = Notices(tmp_path)
    notices.check_draining()
    notices.draining.post()
    with pytest.raises(Refusal, match="UNAVAILABLE: the service is draining") as refused:
        notices.check_draining()
    assert refused.value.reason == "draining"


def test_without_a_supervisor_nothing_is_ever_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NOTICES_VARIABLE, raising=False)
    notices = Notices.of_this_service()
    notices.draining.post()
    notices.check_draining()
    notices.draining.withdraw()


def test_the_supervisor_names_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NOTICES_VARIABLE, str(tmp_path))
    Notices(tmp_path).draining.post()
    assert Notices.of_this_service().draining.stands


def test_a_new_server_begins_without_notices_of_the_last(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    Notices(run.fresh_notices()).draining.post()
    assert not Notices(run.fresh_notices()).draining.stands
    run.close()


def test_a_full_queue_names_its_limit() -> None:
    refusal = queue_full(16, 64, 64)
    assert refusal.reason == "queue_full"
    assert "UNAVAILABLE: all 16 slots are in use and 64 requests wait" in str(refusal)
    assert "limits.queued_requests is 64" in str(refusal)
