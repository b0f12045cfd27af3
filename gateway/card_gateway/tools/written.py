"""Tools and calls as plain text, for a chat template that does not know them.

The words are those on which the models that call functions in the Hermes form were trained: the
system message lists the functions between `<tools>` tags, an assistant's calls stand between
`<tool_call>` tags, and a user's message has the results between `<tool_response>` tags.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

CALL, END_OF_CALL = "<tool_call>", "</tool_call>"

_LIST = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{functions}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""

Message = Mapping[str, Any]


def written_out(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None
) -> list[dict[str, str]]:
    """The same conversation in messages of the roles system, user and assistant."""
    written: list[dict[str, str]] = []
    for is_answer, group in groupby(messages, key=lambda message: message["role"] == "tool"):
        if is_answer:
            answers = (f"<tool_response>\n{one['content']}\n</tool_response>" for one in group)
            written.append({"role": "user", "content": "\n".join(answers)})
            continue
        for message in group:
            calls = map(_call, message.get("tool_calls", ()))
            text = "\n".join(part for part in (message["content"], *calls) if part)
            written.append({"role": message["role"], "content": text})
    return _told(written, tools) if tools else written


def _told(
    messages: list[dict[str, str]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, str]]:
    listed = _LIST.format(functions="\n".join(map(_json, tools)))
    if messages and messages[0]["role"] == "system":
        system = f"{messages[0]['content']}\n\n{listed}"
        return [{"role": "system", "content": system}, *messages[1:]]
    return [{"role": "system", "content": listed}, *messages]


def _call(call: Mapping[str, Any]) -> str:
    return f"{CALL}\n{_json(call['function'])}\n{END_OF_CALL}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
