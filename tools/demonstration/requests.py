"""Prompts and commands for the target, within the limits of the settings."""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from dataclasses import dataclass
from urllib.request import getproxies, proxy_bypass

from card.serving.addresses import bracketed, reachable
from card.serving.model_files import chat_parameters
from card.serving.requests.vocabulary import Vocabulary
from card.settings import REPOSITORY_ROOT, Settings, SettingsError
from card_client import CardError
from card_client.chat_template import ChatTemplate, ChatTemplateError, opening, template_of
from model_files import ModelFilesError, model_files_of
from model_files.template_trial import try_template

QUESTION = "Why is the sky blue? Answer in three sentences."
BEGINNING = """\
class Point:
    def __init__(self, x, y):
        self.x = x
        self.y = y

    def __repr__(self):
"""
TRIED_PROMPT = "What is photosynthesis?"
TRIED_TOKENS = 64


@dataclass(frozen=True)
class Prompt:
    """shown  what a person typed; read  what the target reads"""

    shown: str
    read: str


def prompt_of(
    settings: Settings, typed: str | None, *, raw: bool, system: str | None = None
) -> Prompt:
    """A question through the target's chat template, or a text to continue.

    typed   None: an example, which is a text where the template cannot be used
    raw     continue the text as it stands, as a target without a chat template does anyway
    system  what the target reads first, as of `card_client.chat_template.opening`

    Raises `CardError` where the template cannot be used, and `ChatTemplateError` where it refuses.
    """
    if typed is None:
        with suppress(CardError, ChatTemplateError):
            found = prompt_of(settings, QUESTION, raw=raw, system=system)
            if found.read != QUESTION:
                return found
        return Prompt(BEGINNING, BEGINNING)
    template = None if raw else _template(settings)
    if template is None:
        return Prompt(typed, typed)
    messages = [*opening(template, system), {"role": "user", "content": typed}]
    return Prompt(f"{typed}\n", template.render(messages))


def _template(settings: Settings) -> ChatTemplate | None:
    with suppress(ModelFilesError):  # the server says which file cannot be read
        trial = try_template(model_files_of(settings.target.path))
        if trial is not None and trial.problem:
            raise ChatTemplateError(f"the chat template cannot be used: {trial.problem}")
    return template_of(chat_parameters(settings.target.path))


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
    """A command that asks the service for a text, to copy into a shell. Where the chat template
    cannot be used, the command asks for a completion."""
    try:
        asked = prompt_of(settings, TRIED_PROMPT, raw=False).read
    except (CardError, ChatTemplateError):
        asked = TRIED_PROMPT
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
