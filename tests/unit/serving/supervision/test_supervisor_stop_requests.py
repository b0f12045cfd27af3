"""Requests to stop: counted, waited for, and made by any number of signals at any moment."""

from __future__ import annotations

import sys
import threading
import time

from child_process import child, next_line

from card.serving.supervision.stop_requests import StopRequests

LONG_S = 60.0

INTERRUPTED = """
import faulthandler, sys
from card.serving.supervision.stop_requests import StopRequests

faulthandler.dump_traceback_later(30, exit=True)
requests = StopRequests()

def handler(frame, event, argument):
    requests.ask()
    return handler

sys.settrace(handler)  # calls it before every line of Python that is run from here on
for number in range(1, 100):
    requests.ask()
    assert requests.has_come(number, 60.0)
sys.settrace(None)
print("through", flush=True)
"""


def test_every_request_counts_and_stays() -> None:
    requests = StopRequests()
    requests.ask()
    assert requests.has_come(1, LONG_S)
    assert not requests.has_come(2, 0.0)
    requests.ask()
    assert requests.has_come(2, LONG_S)
    assert requests.has_come(1, 0.0)


def test_who_waits_hears_of_it_at_once() -> None:
    requests = StopRequests()
    asking = threading.Timer(0.05, requests.ask)
    asking.start()
    began_s = time.monotonic()
    assert requests.has_come(1, LONG_S)
    assert time.monotonic() - began_s < LONG_S
    asking.join()


def test_more_requests_than_a_pipe_holds_make_nobody_wait() -> None:
    requests = StopRequests()
    for _ in range(1 << 17):
        requests.ask()
    assert requests.has_come(2, 0.0)


def test_requests_interrupt_anything_and_hang_nobody() -> None:
    """A handler that runs in the midst of the wait, or of another request."""
    with child(sys.executable, "-c", INTERRUPTED) as interrupted:
        assert next_line(interrupted) == b"through"
        assert interrupted.wait(LONG_S) == 0
