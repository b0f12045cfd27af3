"""A headless Chromium that a test drives over DevTools' protocol, through two pipes: no port, no
driver, no package."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

START_S = 60.0
_LOOK_S = 0.05


class PageError(Exception):
    """The page threw, or logged an error."""


class Page:
    """One tab."""

    def __init__(self, to: IO[bytes], back: IO[bytes]) -> None:
        self._to, self._back = to, back
        self._number = 0
        self._session = ""
        self.problems: list[str] = []
        """What the browser said was wrong: exceptions, failed requests, a violated policy."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol and its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._to.write(json.dumps(message).encode() + b"\0")
        self._to.flush()
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise PageError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def open(self, url: str) -> None:
        """Go there, and wait until all of it is loaded."""
        self.call("Page.navigate", url=url)
        self.wait_for(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """Of a JavaScript expression, as JSON; a promise is awaited."""
        told = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in told:
            raise PageError(f"{expression}: {told['exceptionDetails']}")
        return told["result"].get("value")

    def text(self, selector: str) -> str:
        return str(self.value(f"document.querySelector({json.dumps(selector)}).textContent"))

    def set(self, selector: str, value: str) -> None:
        """As a person who types it."""
        found = f"document.querySelector({json.dumps(selector)})"
        event = "new Event('input', {bubbles: true})"
        self.value(f"{found}.value = {json.dumps(value)}; {found}.dispatchEvent({event}); 0")

    def click(self, selector: str) -> None:
        self.value(f"document.querySelector({json.dumps(selector)}).click()")

    def wait_for(self, expression: str, limit_s: float = START_S) -> None:
        """Until a JavaScript expression is true."""
        limit = time.monotonic() + limit_s
        while not self.value(f"Boolean({expression})"):
            assert time.monotonic() < limit, f"{expression} did not come true; {self.problems}"
            time.sleep(_LOOK_S)

    def resize(self, width: int, height: int) -> None:
        """The window, in CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def _read(self) -> dict[str, Any]:
        found = bytearray()
        while (byte := self._back.read(1)) != b"\0":
            if not byte:
                raise PageError("the browser ended")
            found += byte
        message: dict[str, Any] = json.loads(found)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        method, told = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(told["exceptionDetails"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.problems.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.problems += _elsewhere(told["request"]["url"])


def _elsewhere(url: str) -> list[str]:
    is_ours = url.startswith(("http://127.0.0.1:", "data:", "about:"))
    return [] if is_ours else [f"another host is asked: {url}"]


@contextlib.contextmanager
def chromium(program: str, profile: Path) -> Iterator[Page]:
    """A tab of a fresh browser, which ends with the context."""
    (read_commands, write_commands), (read_answers, write_answers) = os.pipe(), os.pipe()
    options = [
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *("--no-first-run", "--disable-extensions", "--disable-background-networking"),
        *("--no-proxy-server", f"--user-data-dir={profile}", "--remote-debugging-pipe"),
    ]
    # The browser reads commands from descriptor 3 and answers on 4.
    command = f'exec "$@" 3<&{read_commands} 4>&{write_answers}'
    process = subprocess.Popen(
        ["bash", "-c", command, "bash", program, *options],
        pass_fds=(read_commands, write_answers),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(read_commands)
    os.close(write_answers)
    try:
        with open(write_commands, "wb") as to, open(read_answers, "rb") as back:
            yield Page(to, back)
    finally:
        process.terminate()
        process.wait(START_S)
