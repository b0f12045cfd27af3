"""What perf_analyzer wrote down is read as a client would: the first text, not the first sign."""

from __future__ import annotations

from loading.perf_analyzer import _texts_ns


def test_empty_responses_of_the_time_in_the_queue_are_no_text() -> None:
    request = {
        "response_timestamps": [10, 20, 30, 40],
        "response_outputs": [{"text_output": text} for text in ("", "", "a", "")],
    }
    assert _texts_ns(request) == [30, 40]


def test_without_outputs_every_response_counts() -> None:
    assert _texts_ns({"response_timestamps": [10, 20]}) == [10, 20]
    outputs = [{}, {}]
    assert _texts_ns({"response_timestamps": [10, 20], "response_outputs": outputs}) == [10, 20]
