"""The prompts: a JSONL file, one object in each line: `id`, `category`, and a text to continue
(`prompt`) or a chat to answer (`messages`). `answer` says what the first line of the text that is
written must end with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError
from tokenizers import Tokenizer

from card.settings import LimitSettings

Render = Callable[[Sequence[Mapping[str, str]]], str]
"""Makes one text of the messages of a chat. Raises `ValueError` for messages that its template
refuses."""


_ALLOWED = (
    'every line must be a JSON object like {"id": "a", "category": "b", "prompt": "def f("} or '
    '{"id": "a", "category": "b", "messages": [{"role": "user", "content": "Hello"}]}'
)


class PromptsError(ValueError):
    """The prompts cannot be used; the message says which line and what is allowed."""


@dataclass(frozen=True)
class Prompt:
    """A text to continue, and its tokens as the server's preprocessing makes them.

    category  such as `SpecBench/qa`: ratios are printed for it, and for what stands before a slash
    is_chat   it is a chat as the model's template writes it
    answer    the one right answer; empty: there is none
    """

    id: str
    text: str
    tokens: tuple[int, ...]
    category: str = ""
    is_chat: bool = False
    answer: str = ""

    def is_answered_by(self, text: str) -> bool:
        """Whether the first line of `text` ends with the answer, and a full stop at most."""
        line = text.lstrip().split("\n", 1)[0]
        return line.rstrip(" .").endswith(f" {self.answer}")


class _Message(BaseModel):
    role: str = Field(min_length=1)
    content: str


class _Line(BaseModel):
    id: str | int
    category: str = ""
    prompt: str | None = Field(None, min_length=1)
    messages: list[_Message] | None = Field(None, min_length=1)
    answer: str = ""

    def text(self, render: Render | None) -> str:
        """Raises `ValueError`."""
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("needs either a prompt or messages")
        if self.prompt is not None:
            return self.prompt
        if render is None:
            raise ValueError("messages: this command continues texts and has no chat template")
        return render([message.model_dump() for message in self.messages or ()])


def read_prompts(
    path: Path, tokenizer: Tokenizer, limit: int | None = None, render: Render | None = None
) -> list[Prompt]:
    """The first `limit` prompts; `render` makes texts of chats. Raises `PromptsError`."""
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
            text, name = found.text(render), str(found.id)
            if name in prompts:
                raise ValueError(f"id {name!r} is taken; ids must differ")
        except ValueError as error:
            said = str(error)
            if isinstance(error, ValidationError):
                problem = error.errors()[0]
                said = f"{'.'.join(map(str, problem['loc'])) or 'the line'}: {problem['msg']}"
            raise PromptsError(f"{path}, line {number}: {said}; {_ALLOWED}") from error
        tokens, is_chat = tuple(tokenizer.encode(text).ids), found.messages is not None
        prompts[name] = Prompt(name, text, tokens, found.category, is_chat, found.answer)
    if not prompts:
        raise PromptsError(f"--prompts {path} holds no prompt; at least one is needed")
    return list(prompts.values())


def check_room(prompts: list[Prompt], max_tokens: int, limits: LimitSettings) -> None:
    """Refuse prompts that the settings do not allow. Raises `PromptsError`."""
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
