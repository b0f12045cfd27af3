"""What settings allow a request to choose of speculation."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from card.sampling import SamplingParameters
from card.serving.requests.refusal import Refusal
from card.serving.requests.slot_request import Admission
from card.serving.requests.wire import GenerateRequest
from card.settings import Settings


def admission(**speculation: Any) -> Admission:
    return Admission(Settings.model_validate({"speculation": speculation}))


def test_a_drafter_that_is_not_loaded_is_refused_by_name() -> None:
    for name in ("tree", "ngram"):
        assert admission().drafter(GenerateRequest(drafter=name)) == name
    for field, unloaded in product(("drafter", "forbidden_drafter"), ("phrases", "oracle")):
        asked: dict[str, Any] = {field: unloaded}
        wanted = f"^INVALID_ARGUMENT: {field} is '{unloaded}'; it must be tree or ngram, which are "
        with pytest.raises(Refusal, match=wanted):
            admission().drafter(GenerateRequest(**asked))
    with pytest.raises(Refusal, match="drafter is 'tree'; it must be ngram, which is loaded"):
        admission(drafter="ngram").drafter(GenerateRequest(drafter="tree"))


def test_what_a_request_forbids_makes_no_candidates() -> None:
    by, none, tree, ngram = (
        admission(),
        *(GenerateRequest(forbidden_drafter=name) for name in (None, "tree", "ngram")),
    )
    assert [by.drafter(request) for request in (none, tree, ngram)] == ["tree", "ngram", "tree"]
    assert [by.proposes(request) for request in (none, tree, ngram)] == [True, True, False]
    with pytest.raises(Refusal, match="forbidden_drafter is 'tree'; it must be another one"):
        by.drafter(GenerateRequest(drafter="tree", forbidden_drafter="tree"))


def test_remote_draft_when_another_drafter_is_named_is_refused() -> None:
    with pytest.raises(Refusal, match="drafter is 'tree'; it must be absent beside draft_key"):
        admission().drafter(GenerateRequest(drafter="tree", draft_key="0" * 32))


def test_what_forbids_all_that_is_loaded_is_decoded_plainly() -> None:
    def decided(by: Admission, **request: Any) -> str:
        sent = GenerateRequest(**request)
        return by.decoding(sent, SamplingParameters(), "auto", by.drafter(sent))

    assert decided(admission()) == "auto"
    assert decided(admission(), forbidden_drafter="tree") == "auto"
    assert decided(admission(drafter="ngram"), forbidden_drafter="ngram") == "autoregressive"
    keyed = {"forbidden_drafter": "ngram", "draft_key": "0" * 32}
    assert decided(admission(drafter="ngram"), **keyed) == "auto", "a device drafts"


def test_tensorrt_llm_verifies_by_itself() -> None:
    target = {"path": "models/target", "engine": "tensorrt_llm"}
    settings = {"target": target, "speculation": {"lossy_acceptance": ["loose"]}}
    by = Admission(Settings.model_validate(settings))
    with pytest.raises(Refusal, match="acceptance is 'loose'"):
        by.acceptance(GenerateRequest(acceptance="loose"))
    with pytest.raises(Refusal, match="drafter is 'ngram'; it must be tree, which is loaded"):
        by.drafter(GenerateRequest(drafter="ngram"))
