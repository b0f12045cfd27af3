"""The page in a real browser, before a real gateway and server: what a person sees and does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Page, chromium
from programs import program
from running_doors import RunningGateway, running_gateway
from running_service import ANSWER_S, RunningService, StartService

PROMPT = "def fibonacci(n):"
TOKENS = 64
DONE = "!document.querySelector('#run').disabled"
KEY = "a key for the page"


@pytest.fixture(scope="module")
def service(start_service: StartService) -> Iterator[RunningService]:
    """Where the draft works however busy the machine is, and n-grams leave it something to find:
    else a quick target is done with the text before the draft has read the prompt."""
    with start_service(
        {"speculation": {"control": "fixed", "rows": 8, "ngram_tokens": 2}}
    ) as service:
        yield service


@pytest.fixture(scope="module")
def gateway(service: RunningService) -> Iterator[RunningGateway]:
    metrics = f"http://127.0.0.1:{service.settings.serving.metrics_port}/metrics"
    with running_gateway(service, "--page", f"--server-metrics={metrics}") as running:
        yield running


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    browser = shutil.which("google-chrome") or program("chromium", "chromium")
    with chromium(browser, tmp_path) as page:
        yield page


def run(page: Page, mode: str = "text") -> None:
    """Decode the prompt with CARD and plainly."""
    page.wait_for(DONE)
    page.set("#mode", mode)
    page.set("#prompt", PROMPT)
    page.set("#tokens", str(TOKENS))
    page.click("#run")
    page.wait_for(DONE, ANSWER_S)
    assert page.text("#problem") == ""


def count(page: Page, selector: str) -> int:
    return int(page.value(f"document.querySelectorAll('{selector}').length"))


async def test_a_person_sees_a_text_come_and_its_candidates_again(
    service: RunningService, gateway: RunningGateway, page: Page
) -> None:
    wanted = await service.text(PROMPT, max_tokens=TOKENS)
    page.open(f"http://127.0.0.1:{gateway.port}/")
    run(page)
    assert page.text("#text") == wanted
    assert page.text("#verdict").endswith("The texts are identical.")
    assert all(float(page.text(f"#{row} .rate")) > 0 for row in ("with-card", "without"))
    assert "% of the time" in page.text("#ways"), "the text that decoding auto wrote first"

    found = {finder: int(page.text(f"#by-{finder}")) for finder in ("draft", "ngram", "target")}
    assert found["draft"] > 0, found
    assert found["target"] > 0
    assert sum(found.values()) == TOKENS
    for finder, tokens in found.items():
        assert count(page, f"#text .{finder}") == tokens

    # Every moment again, by the slider: candidates asked for, accepted, refused, corrected.
    seen = set()
    moments = int(page.value("document.querySelector('#moment').max"))
    for moment in range(moments + 1):
        page.set("#moment", str(moment))
        drawn = ("guess", "waiting", "accepted", "rejected", "own")
        seen |= {kind for kind in drawn if count(page, f"#tree .node.{kind}")}
    assert seen == {"guess", "waiting", "accepted", "rejected", "own"}
    page.set("#moment", "0")
    assert count(page, "#text .ahead") >= TOKENS - 1
    page.set("#speed", "1")
    page.click("#play")
    page.wait_for(f"document.querySelector('#moment').value == {moments}")
    assert count(page, "#text .ahead") == 0
    assert page.problems == [], "an exception, a violated policy or another host"


def test_a_text_of_a_schema_and_a_call_are_shown_as_they_are_written(
    gateway: RunningGateway, page: Page
) -> None:
    page.open(f"http://127.0.0.1:{gateway.port}/")
    wanted = {"name", "age", "city"}
    page.set("#shape", "schema")
    run(page, "chat")
    assert json.loads(page.text("#text")).keys() == wanted
    page.set("#shape", "tools")
    run(page, "chat")
    written, call = page.text("#text"), page.text("#calls")
    assert call.startswith("remember {")
    assert json.loads(call.removeprefix("remember ")).keys() == wanted
    assert written.startswith("<tool_call>")
    assert call.removeprefix("remember ") in written
    assert count(page, "#text span") > 0
    assert page.text("#verdict").endswith("The texts are identical.")
    page.set("#fields", "{")
    page.click("#run")
    page.wait_for("document.querySelector('#problem').textContent")
    assert page.problems == []


def test_a_narrow_window_shows_all_of_it(gateway: RunningGateway, page: Page) -> None:
    page.resize(360, 800)
    page.open(f"http://127.0.0.1:{gateway.port}/")
    run(page)
    assert page.value("document.documentElement.scrollWidth") <= 360
    assert count(page, "#text span") == TOKENS


def test_the_page_asks_for_the_key_and_needs_it(
    service: RunningService, page: Page, tmp_path: Path
) -> None:
    file = tmp_path / "key"
    file.write_text(KEY, encoding="utf-8")
    with running_gateway(service, "--page", f"--api-key-file={file}") as gateway:
        page.open(f"http://127.0.0.1:{gateway.port}/")
        page.wait_for("document.querySelector('#problem').textContent")
        assert "the API key is missing" in page.text("#problem")
        assert not page.value("document.querySelector('#key-form').hidden")
        assert page.value("document.querySelector('#run').disabled")
        page.set("#key", KEY)
        page.click("#key-form button")
        run(page)
        assert page.value("document.querySelector('#key-form').hidden")
        assert len(page.text("#text")) > 0
