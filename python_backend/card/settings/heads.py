"""The hidden states of the target that a draft reads."""

from __future__ import annotations

from card.engines import EngineError
from card.engines.architecture import read_architecture
from card.settings.whole import Settings
from card.speculation.drafters.heads.formats import KINDS, head_of
from card.speculation.sources import WITHOUT_DRAFT
from model_files import ModelFilesError, model_files_of


def with_head(settings: Settings) -> Settings:
    """With the drafter and the taps of a draft that reads the target's hidden states, if the draft
    is one.

    Raises `ValueError` where settings and draft disagree.
    """
    speculation, draft, named = settings.speculation, settings.draft, settings.speculation.drafter
    if settings.drafter in WITHOUT_DRAFT or settings.engine_of(draft) == "tensorrt_llm":
        return settings
    files = model_files_of(draft.path)
    try:
        head = head_of(files.config())
    except ModelFilesError:  # reported where the model is loaded
        return settings
    except ValueError as error:
        raise ValueError(f"{files.config_file}: {error}") from None
    if head is None:
        if named in KINDS:
            raise ValueError(
                f"speculation.drafter is {named}, but {files.config_file} describes no head that "
                "reads the target's hidden states; set speculation.drafter: auto"
            )
        return settings
    if named not in ("auto", head.kind):
        raise ValueError(
            f"speculation.drafter is {named}, but the draft {draft.path} is a head of the kind "
            f"{head.kind}; set speculation.drafter: auto"
        )
    if settings.engine_of(settings.target) == "tensorrt_llm" or draft.device != "cpu":
        raise ValueError(
            f"the draft {draft.path} reads the target's hidden states: it runs with draft.device: "
            "cpu, and a target of the engines openvino and torch"
        )
    try:
        taps = draft.taps or head.taps(read_architecture(settings.target.path).layers)
    except EngineError as error:
        raise ValueError(str(error)) from None
    return settings.model_copy(
        update={
            "draft": draft.model_copy(update={"taps": taps}),
            "speculation": speculation.model_copy(update={"drafter": head.kind}),
        }
    )
