"""Publishes the target's chat template to clients, as parameters of the ensemble.

A client reads the ensemble's configuration from Triton and renders conversations itself, as
`card-client chat` does.
"""

from __future__ import annotations

from pathlib import Path

from model_files import ModelFilesError, model_files_of
from model_files.interface import special_tokens
from model_files.template_trial import try_template


def chat_parameters(path: Path) -> dict[str, str]:
    """The chat template of the model at `path`, its special tokens, and the token that
    `preprocessing` puts before every prompt; empty if the model has no usable template.

    This function ignores unreadable files; the models that need them report the error.
    """
    try:
        files = model_files_of(path)
        source = files.chat_template()
        trial = try_template(files)
        if not source or trial is None or trial.problem:
            return {}
        tokens = special_tokens(files.tokenizer_config())
        return {
            "chat_template": source,
            **tokens,
            "leading_token": files.leading_token(),
        }
    except ModelFilesError:
        return {}


def as_protobuf_text(parameters: dict[str, str]) -> str:
    """The parameters in the text format of a ``config.pbtxt``."""
    return "".join(
        f"parameters {{ key: {_quoted(name)} value: {{ string_value: {_quoted(value)} }} }}\n"
        for name, value in parameters.items()
    )


def _quoted(text: str) -> str:
    """A string in protobuf's text format; bytes other than plain letters are written in octal."""
    plain = (
        chr(byte) if 0x20 <= byte < 0x7F and byte not in b'"\\' else f"\\{byte:03o}"
        for byte in text.encode("utf-8", errors="replace")
    )
    return f'"{"".join(plain)}"'
