"""What an operator should know about a model that is served all the same."""

from __future__ import annotations

from model_files.interface import ModelFiles
from model_files.template_trial import try_template


def cautions(files: ModelFiles) -> list[str]:
    """One sentence each; the log and `scripts/import_pair` say them. Raises `ModelFilesError`."""
    template = template_caution(files)
    return [*files.warnings(), *([f"{files.path}: {template}"] if template else [])]


def template_caution(files: ModelFiles) -> str:
    """What keeps chats from the model's chat template; "" if nothing does. Raises
    `ModelFilesError`."""
    trial = try_template(files)
    if trial is None:
        return ""
    if trial.problem:
        return f"the chat template cannot be used, chats are refused: {trial.problem}"
    if trial.refusal:
        return f"the chat template refuses a chat of one question: {trial.refusal}"
    return ""
