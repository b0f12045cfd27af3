"""The page at the gateway's root: a prompt, its text, and the candidate tree at work.

Three files that a browser takes as they are. They name nothing on another host, and nothing that
stands in them but the script itself is run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from importlib import resources

from fastapi import FastAPI, Request, Response

FILES = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
"""File and media type by path. The files hold no secret, so no key is needed."""

_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def add_page(app: FastAPI) -> Collection[str]:
    """Answer the page's paths, which are returned."""
    folder = resources.files(__name__)
    for path, (name, kind) in FILES.items():
        content = folder.joinpath(name).read_bytes()
        app.add_api_route(path, _answering(content, kind), methods=["GET", "HEAD"])
    return FILES.keys()


def _answering(content: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        return Response(content, media_type=kind, headers=_HEADERS)

    return answer
