"""Whether the pair's files can be served at all, looked at before anything starts.

The models check the same and more when they load them, but then a server has been started. A
stranger's files may take for ever to read, so a child process reads them, which can be killed.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from card.decoding.from_settings import ngram_memory
from card.engines.architecture import read_architecture
from card.engines.checkpoints import open_checkpoint
from card.engines.vocabulary import shared_vocabulary, vocabulary_size
from card.serving.child import signal_on_parent_exit
from card.serving.log import EventLog
from card.serving.notices import LOAD_ERRORS
from card.serving.requests.vocabulary import Vocabulary
from card.settings import GUESTS, ModelSettings, Settings
from card.settings.models import DraftSettings, TargetSettings
from card.speculation.drafters.heads.reading import read_head
from card.vllm.process import vllm_python
from model_files import ModelFiles, ModelFilesError, model_files_of
from model_files.cautions import cautions
from model_files.interface import special_tokens
from model_files.opening import is_gguf
from model_files.template_trial import try_template

_INSTEAD = {
    "draft": ", or set draft: null to serve without one",
    "draft_small": "; scripts/cut_draft.py makes one of the draft",
}
"""What to do without a model of this role."""
_PIECE_BYTES = 1 << 16


class ModelFilesReading:
    """A child process that reads the models' files; `close` kills it."""

    def __init__(self, settings: Settings) -> None:
        """Fork it, from the main thread and before other threads run. Raises `OSError`."""
        self._reader, writer = os.pipe()
        self._said = b""
        parent = os.getpid()
        self._child = os.fork()
        if self._child == 0:
            _read_in_child(settings, writer, parent)
        os.close(writer)

    def has_ended(self, within_s: float) -> bool:
        """Wait for so long at most; whether the child has said everything."""
        if not select.select([self._reader], [], [], within_s)[0]:
            return False
        piece = os.read(self._reader, _PIECE_BYTES)
        self._said += piece
        return not piece

    @property
    def result(self) -> tuple[str | None, dict[str, str]]:
        """What is wrong, in one line, and what clients may know of the target."""
        try:
            problem, told = json.loads(self._said)
        except ValueError:
            problem = "the process that reads the models' files ended; its message stands above"
            told = {}
        return problem, told

    def close(self) -> None:
        os.kill(self._child, signal.SIGKILL)
        os.waitpid(self._child, 0)
        os.close(self._reader)


def _read_in_child(settings: Settings, writer: int, parent: int) -> NoReturn:
    """Say what `check_model_files` and `_told_to_clients` find, and end."""
    code = 1
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal_on_parent_exit(signal.SIGKILL, parent)
        problem = check_model_files(settings)
        told = {} if problem else _told_to_clients(settings)
        if not problem:
            log = EventLog("supervisor")
            for caution in cautions(model_files_of(settings.target.path)):
                log.warn("model_files", reason=caution)
        with open(writer, "w", encoding="ascii") as answer:
            json.dump((problem, told), answer)
        code = 0
    except Exception:
        traceback.print_exc()
    finally:  # without the exit handlers of the parent, of which this is a copy
        sys.stderr.flush()
        os._exit(code)


def _told_to_clients(settings: Settings) -> dict[str, str]:
    """The parameters of the ensemble's configuration."""
    context = str(settings.limits.context_tokens)
    return {"context_tokens": context, **chat_parameters(settings.target.path)}


def check_model_files(settings: Settings) -> str | None:
    """What is wrong with configuration, tokenizer or weights of draft or target, in one line."""
    held: list[ModelFiles] = []  # so that a GGUF file's vocabulary is read once and not five times
    try:
        small = ("draft_small",) if settings.has_small_draft else ()
        for role in (*reversed(settings.roles), *small):
            model: ModelSettings = getattr(settings, role)
            if not model.path.exists():
                instead = _INSTEAD.get(role, "")
                return (
                    f"{role}.path: {model.path} does not exist; it must name a Hugging Face "
                    f"directory or a GGUF file{instead}"
                )
            with suppress(ModelFilesError):  # which the checks below say in their words
                held.append(model_files_of(model.path))
            if role == "draft" and settings.has_head:
                read_head(model.path, settings.target.path)
                continue
            engine = settings.engine_of(model)
            if engine not in GUESTS:
                open_checkpoint(model.path, read_architecture(model.path))
            elif is_gguf(model.path):
                return (
                    f"{role}.path: {model.path} is a GGUF file, which engine {engine} does not "
                    "read; name a Hugging Face directory, or set "
                    f"{role}.engine to auto, openvino or torch"
                )
            if engine == "vllm" and isinstance(model, (TargetSettings, DraftSettings)):
                vllm_python(model)
            if role != "target":
                shared_vocabulary(model.path, settings.target.path)
        Vocabulary.load(settings.target.path)
        ngram_memory(settings, vocabulary_size(settings.target.path))
    except LOAD_ERRORS as error:
        return str(error)
    return None


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
