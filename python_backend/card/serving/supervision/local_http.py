"""HTTP to a service on this machine: no proxy can reach that for us, whatever `http_proxy` says."""

from __future__ import annotations

import http.client
import urllib.request
from typing import cast

_PAST_PROXIES = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def open_local(request: str | urllib.request.Request, timeout_s: float) -> http.client.HTTPResponse:
    """The answer, as of `urllib.request.urlopen`. Raises `OSError`, for an answer that is an error
    its subclass `HTTPError`."""
    return cast(http.client.HTTPResponse, _PAST_PROXIES.open(request, timeout=timeout_s))
