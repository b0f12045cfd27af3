"""The shortlist of ids that a draft ranks.

A draft's head is often most of the bytes that its pass reads, and nearly all tokens of a text are
in a part of the vocabulary (FR-Spec, Zhao et al., arXiv 2502.14856). `draft_vocabulary.json` beside
a draft's weights may list these ids: ``{"ids": [...]}``. Other ids are never candidates, so the
list changes the speed and never the text. A GGUF file has no such list.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from card.engines.interface import EngineError
from model_files.json_file import JsonFileError, check_small

DRAFT_VOCABULARY = "draft_vocabulary.json"


class _DraftVocabulary(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    ids: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


def read_draft_vocabulary(directory: Path, vocabulary: int) -> NDArray[np.int32] | None:
    """The listed ids in ascending order; None: no list, so all ids of the vocabulary.

    Raises `EngineError` saying what is wrong with the file.
    """
    if not directory.is_dir():
        return None
    file = directory / DRAFT_VOCABULARY
    try:
        check_small(file)
        content = file.read_bytes()
    except FileNotFoundError:
        return None
    except JsonFileError as error:
        raise EngineError(str(error)) from error
    except OSError as error:
        raise EngineError(f"{file} cannot be read: {error}") from error
    try:
        listed = _DraftVocabulary.model_validate_json(content).ids
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        said = ": ".join(filter(None, [".".join(map(str, wrong["loc"])), wrong["msg"]]))
        raise EngineError(
            f'{file}: {said}; allowed: {{"ids": [...]}} with ids of the vocabulary, or no such file'
        ) from error
    if max(listed) >= vocabulary:
        raise EngineError(
            f"{file}: id {max(listed)} is none of the vocabulary's {vocabulary}; the file belongs "
            "to another model: take it away, or write one for this draft"
        )
    return np.unique(np.array(listed, np.int32))
