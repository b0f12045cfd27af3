"""What settings allow a request to choose of speculation."""

from __future__ import annotations

from typing import Any

import pytest

from card.serving.requests.admission import Admission
from card.serving.requests.refusal import Refusal
from card.serving.requests.wire import GenerateRequest
from card.settings import Settings


def admission(**speculation: Any) -> Admission:
    return Admission(Settings.model_validate({"speculation": speculation}))


def test_a_rule_that_changes_the_text_is_refused_unless_settings_list_it() -> None:
    wanted = GenerateRequest(acceptance="loose")
    with pytest.raises(Refusal, match=r"acceptance is 'loose'; it must be one of exact \(") as told:
        admission().acceptance(wanted)
    assert told.value.field == "acceptance"
    allows = admission(lossy_acceptance=["loose"])
    assert allows.acceptance(wanted) == "loose"
    assert allows.acceptance(GenerateRequest()) == "exact", "and it is nobody else's"


def test_a_drafter_that_is_not_loaded_is_refused_by_name() -> None:
    assert admission().drafter(GenerateRequest(drafter="tree")) == "tree"
    with pytest.raises(Refusal, match="drafter is 'tensorrt'; it must be tree, which is loaded"):
        admission().drafter(GenerateRequest(drafter="tensorrt"))


def test_tensorrt_llm_verifies_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("card.serving.requests.admission.installed_version", lambda: "1.3.0rc24")
    target = {"path": "models/target", "engine": "tensorrt_llm"}
    settings = {"target": target, "speculation": {"lossy_acceptance": ["loose"]}}
    with pytest.raises(Refusal, match="acceptance is 'loose'"):
        Admission(Settings.model_validate(settings)).acceptance(GenerateRequest(acceptance="loose"))
