"""uvicorn's HTTP, so that nobody answers a request behind uvicorn's own refusal of it."""

from __future__ import annotations

from uvicorn.protocols.http.h11_impl import H11Protocol


class Http(H11Protocol):
    """Where a body turns out not to be HTTP, uvicorn answers 400 by itself. Whoever was to answer
    the request would fail when he tries, and each time leave a traceback in the log."""

    def send_400_response(self, msg: str) -> None:
        super().send_400_response(msg)
        if self.cycle is not None:
            self.cycle.disconnected = True
