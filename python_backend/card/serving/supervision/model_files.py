"""Whether the pair's files can be served at all, looked at in a moment before anything starts.

The models check the same and more when they load them, but then a server has been started.
"""

from __future__ import annotations

from contextlib import suppress

from card.decoding.from_settings import ngram_memory
from card.engines.architecture import read_architecture
from card.engines.checkpoints import open_checkpoint
from card.engines.vocabulary import shared_vocabulary, vocabulary_size
from card.serving.requests.vocabulary import Vocabulary
from card.serving.supervision.load_failure import LOAD_ERRORS
from card.settings import ModelSettings, Settings
from model_files import ModelFiles, ModelFilesError, model_files_of
from model_files.opening import is_gguf

_INSTEAD = {
    "draft": ", or set draft: null to serve without one",
    "draft_small": "; scripts/cut_draft.py makes one of the draft",
}
"""What to do without a model of this role."""


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
            if settings.engine_of(model) != "tensorrt_llm":
                open_checkpoint(model.path, read_architecture(model.path))
            elif is_gguf(model.path):
                return (
                    f"{role}.path: {model.path} is a GGUF file, which engine tensorrt_llm does not "
                    "read; name a Hugging Face directory, or set "
                    f"{role}.engine to auto, openvino or torch"
                )
            if role != "target":
                shared_vocabulary(model.path, settings.target.path)
        Vocabulary.load(settings.target.path)
        ngram_memory(settings, vocabulary_size(settings.target.path))
    except LOAD_ERRORS as error:
        return str(error)
    return None
