"""The settings that serve a pair, as `scripts/run --settings` takes them."""

from __future__ import annotations

from pathlib import Path

import yaml

from card.settings import LimitSettings, Settings, load_settings
from importing.checks import Model

_HEADER = """\
# Written by scripts/import_pair. Every field and its range: docs/settings.md.
# A slot takes KV cache for limits.context_tokens positions in each engine at most.
"""


def settings_text(draft: Model | Path, target: Model, context: int | None) -> str:
    """The YAML: both models with the engine that can run them, and a context that both have.

    `draft` is the path of a head on the target's hidden states, or another draft. `context` is what
    is wanted; None: the default, or what the models have if that is less.
    """
    models = (target,) if isinstance(draft, Path) else (draft, target)
    have = min(model.context for model in models if model.context is not None)
    content = {
        "target": _section(target),
        "draft": {"path": str(draft)} if isinstance(draft, Path) else _section(draft),
        "limits": {"context_tokens": min(context or LimitSettings().context_tokens, have)},
    }
    return _HEADER + yaml.safe_dump(content, sort_keys=False)


def _section(model: Model) -> dict[str, str]:
    return {"path": str(model.path), "engine": model.engine}


def write_settings(file: Path, text: str) -> Settings:
    """Write the file and read it as the server will. Raises `SettingsError`, `OSError`."""
    file.write_text(text, encoding="utf-8")
    return load_settings(file)
