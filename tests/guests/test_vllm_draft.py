"""A second vLLM as the draft: it makes candidates by requests, and costs no text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from guest_streams import PROMPTS, texts_while_killed
from running_service import RunningService, running_service
from vllm_service import MAX_TOKENS, SETTINGS, vllm_of

DRAFT = {"engine": "vllm", "dtype": "float32", "vllm": {"side_branches": 1}}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    settings = {**SETTINGS, "draft": DRAFT, "cache": {"slots": 4}}
    with running_service(tmp_path_factory.mktemp("vllm-draft"), settings) as running:
        yield running


@pytest.fixture(scope="module")
def right(service: RunningService) -> list[str]:
    """What the target writes without speculation, one prompt at a time."""
    return service.alone(PROMPTS, max_tokens=MAX_TOKENS)


async def test_candidates_are_accepted_when_a_second_vllm_drafts(
    service: RunningService, right: list[str]
) -> None:
    asked = {"max_tokens": MAX_TOKENS, "forbidden_drafter": "ngram", "return_perf_metrics": True}
    await service.until_speculates(PROMPTS[0], forbidden_drafter="ngram")
    for prompt, text in zip(PROMPTS, right, strict=True):
        (reply,) = await service.ask(text_input=prompt, **asked)
        assert reply.text == text


async def test_texts_go_on_when_the_draft_is_killed(
    service: RunningService, right: list[str]
) -> None:
    old = service.pid_of("draft")
    texts = await texts_while_killed(
        service, vllm_of(service, "draft"), streams=4, max_tokens=MAX_TOKENS
    )
    assert texts == right[:4]
    await service.until_back_without(old)
    await service.until_speculates(PROMPTS[0], forbidden_drafter="ngram")
