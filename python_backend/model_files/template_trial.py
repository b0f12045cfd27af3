"""A chat template is a program that comes with the model: it is tried before it is used.

The trial runs in a process that can be killed, with bounds on time, memory and output. A template
that cannot be parsed, or breaks a bound, is not used at all: chats are refused with the reason, and
texts are completed without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from chat_templates import Bounds, TemplateProcess
from model_files.interface import ModelFiles, ModelFilesError, special_tokens

_BOUNDS = Bounds(cpu_s=2.0, memory_bytes=256 << 20, output_characters=1 << 20)
"""Of a conversation of two short messages."""
_QUESTION = {"role": "user", "content": "What is six times seven?"}
_ANSWER = "forty-two"
"""What the assistant says in the conversation that shows where a turn ends."""
_LONGEST_END = 1024
"""Characters behind an answer that are reported: a token that ends a turn is shorter."""
_LONGEST_REASON = 300


@dataclass(frozen=True)
class Trial:
    """What became of a template.

    problem     why no chat can use it; "" if chats can
    refusal     why it refuses a conversation of one question; "" if it does not
    answer_end  what it writes behind an answer; "" if it writes nothing or fails
    """

    problem: str = ""
    refusal: str = ""
    answer_end: str = ""


def try_template(files: ModelFiles) -> Trial | None:
    """The trial of the model's chat template; None: the model brings none. A process tries a
    template once. Raises `ModelFilesError` where the files cannot be read."""
    source = files.chat_template()
    if source is None:
        return None
    return _tried(source, tuple(sorted(special_tokens(files.tokenizer_config()).items())))


@lru_cache(maxsize=8)
def _tried(source: str, tokens: tuple[tuple[str, str], ...]) -> Trial:
    process = TemplateProcess(_BOUNDS)
    # Templates ask whether these are none, which something undefined is not.
    variables = {"documents": None, "tools": None, **dict(tokens)}
    said = {"role": "assistant", "content": _ANSWER}
    question = {**variables, "messages": [_QUESTION], "add_generation_prompt": True}
    answered = {**variables, "messages": [_QUESTION, said], "add_generation_prompt": False}
    try:
        compiled, asked, ended = (
            process.ask(source, given) for given in (None, question, answered)
        )
    except OSError as error:
        return Trial(f"it cannot be tried, because no process can be started: {error}")
    except ModuleNotFoundError as error:
        raise ModelFilesError(str(error)) from error
    finally:
        process.close()
    if "refused" in compiled:
        return Trial(f"it cannot be parsed: {_reason(compiled)}")
    for answer in (compiled, asked, ended):
        if "exceeded" in answer:
            return Trial(str(answer["exceeded"]))
    text = str(ended.get("text", ""))  # a template may fail where a turn has ended
    end = text.rpartition(_ANSWER)[2][:_LONGEST_END] if _ANSWER in text else ""
    return Trial(refusal=_reason(asked), answer_end=end)


def _reason(answer: Mapping[str, Any]) -> str:
    """Why the template refuses, in one line; "" if it does not."""
    return " ".join(str(answer.get("refused", "")).split())[:_LONGEST_REASON]
