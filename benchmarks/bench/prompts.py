"""The prompts: a JSONL file, one object with `id`, `category` and `prompt` in each line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError
from tokenizers import Tokenizer

from card.settings import LimitSettings


class PromptsError(ValueError):
    """The prompts cannot be used; the message says which line and what is allowed."""


@dataclass(frozen=True)
class Prompt:
    """A text to continue, and its tokens as the server's preprocessing makes them."""

    id: str
    text: str
    tokens: tuple[int, ...]


class _Line(BaseModel):
    id: str | int
    category: str = ""
    prompt: str = Field(min_length=1)


def read_prompts(path: Path, tokenizer: Tokenizer, limit: int | None = None) -> list[Prompt]:
    """The first `limit` prompts of the file. Raises `PromptsError`."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PromptsError(f"--prompts {path} cannot be read: {error}") from error
    prompts: dict[str, Prompt] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if len(prompts) == limit:
            break
        try:
            found = _Line.model_validate_json(line)
        except ValidationError as error:
            (problem, *_) = error.errors()
            field = ".".join(map(str, problem["loc"])) or "the line"
            raise PromptsError(
                f"{path}, line {number}: {field}: {problem['msg']}; every line must be a JSON "
                'object like {"id": "a", "category": "b", "prompt": "def f("}'
            ) from error
        name = str(found.id)
        if name in prompts:
            raise PromptsError(f"{path}, line {number}: id {name!r} is taken; ids must differ")
        prompts[name] = Prompt(name, found.prompt, tuple(tokenizer.encode(found.prompt).ids))
    if not prompts:
        raise PromptsError(f"--prompts {path} holds no prompt; at least one is needed")
    return list(prompts.values())


def check_room(prompts: list[Prompt], max_tokens: int, limits: LimitSettings) -> None:
    """Refuse what the settings do not admit. Raises `PromptsError`."""
    if max_tokens > limits.max_tokens:
        raise PromptsError(
            f"--max-tokens is {max_tokens}; at most {limits.max_tokens} are allowed "
            "(limits.max_tokens)"
        )
    most = min(limits.prompt_tokens, limits.context_tokens - max_tokens)
    for prompt in prompts:
        if len(prompt.tokens) > most:
            raise PromptsError(
                f"prompt {prompt.id} has {len(prompt.tokens)} tokens; at most {most} are allowed "
                f"before {max_tokens} new ones (limits.prompt_tokens, limits.context_tokens): "
                "leave it out or lower --max-tokens"
            )
