"""Requests that the service takes, whatever limits its settings have."""

from __future__ import annotations

import json
import shlex
from urllib.request import getproxies, proxy_bypass

from card.serving.addresses import bracketed, reachable
from card.serving.requests.vocabulary import Vocabulary
from card.settings import REPOSITORY_ROOT, Settings, SettingsError
from demonstration.prompts import prompt_of

TRIED_PROMPT = "What is photosynthesis?"
TRIED_TOKENS = 64


def allowed_tokens(settings: Settings, prompt: str, wanted: int) -> int:
    """`wanted` new tokens behind `prompt`, or as many as the limits leave; at least one.

    Where the tokenizer cannot be read the context counts for nothing: no server starts without it.
    """
    limits = settings.limits
    most = min(wanted, limits.max_tokens)
    try:
        tokenizer = Vocabulary.load(settings.target.path).tokenizer
    except SettingsError:
        return most
    text = prompt.encode(errors="replace").decode()  # a shell may pass what is no text
    return max(1, min(most, limits.context_tokens - len(tokenizer.encode(text).ids)))


def try_line(settings: Settings) -> str:
    """A command that asks the service for a text, to copy into a shell."""
    asked = prompt_of(settings, TRIED_PROMPT, raw=False).read
    tokens = allowed_tokens(settings, asked, TRIED_TOKENS)
    serving = settings.serving
    host = bracketed(reachable(serving.address))
    if not serving.http_inference:
        options = f"--url {host}:{serving.grpc_port} --max-tokens {tokens}"
        client = shlex.quote(str(REPOSITORY_ROOT / ".venv/bin/card-client"))
        return f"{client} generate {options} {shlex.quote(asked)}"
    body = json.dumps({"text_input": asked, "max_tokens": tokens, "stream": True})
    url = f"http://{host}:{serving.http_port}/v2/models/ensemble/generate_stream"
    # Where the environment names a proxy, curl would ask that for this machine.
    past = " --noproxy '*'" if "http" in getproxies() and not proxy_bypass(host) else ""
    return f"curl -sN{past} {url} -d {shlex.quote(body)}"
