"""Cut a smaller draft out of a draft: some of its layers, with the same embedding and vocabulary.

Nothing is trained, so the smaller one agrees with the draft less often than one that was. It is for
`speculation.drafter: hierarchy`, where it drafts for the draft it was cut from; whether that pays
`./scripts/bench family --system hsd` measures.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Annotated

import typer
from safetensors import SafetensorError, safe_open

from refusal import refuse

_LAYER = re.compile(r"^(model\.layers\.)(\d+)(\..+)$")
_COPIED = (
    "chat_template.jinja",
    "draft_vocabulary.json",
    "tokenizer.json",
    "tokenizer_config.json",
)


def cut(draft: Path, smaller: Path, layers: list[int]) -> None:
    """Write a model of these layers of another one, in this order. Raises `ValueError` for layers
    that it has not and a folder that holds something, and what reading and writing files raise."""
    from safetensors.torch import save_file  # torch takes seconds to import

    if smaller.is_dir() and any(smaller.iterdir()):
        raise ValueError(f"{smaller} holds something already: name another folder, or empty it")
    config = json.loads((draft / "config.json").read_text(encoding="utf-8"))
    count = int(config["num_hidden_layers"])
    if wrong := [layer for layer in layers if not 0 <= layer < count]:
        raise ValueError(f"{draft} has layers 0 to {count - 1}, not {wrong[0]}")
    place = {layer: str(at) for at, layer in enumerate(layers)}
    kept = {}
    with safe_open(draft / "model.safetensors", framework="pt") as weights:
        for name in weights.keys():  # noqa: SIM118  (safe_open is not a mapping)
            part = _LAYER.match(name)
            if part is None:
                kept[name] = weights.get_tensor(name)
            elif int(part[2]) in place:
                kept[part[1] + place[int(part[2])] + part[3]] = weights.get_tensor(name)
    smaller.mkdir(parents=True, exist_ok=True)
    save_file(kept, smaller / "model.safetensors", metadata={"format": "pt"})
    config["num_hidden_layers"] = len(layers)
    (smaller / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    for name in _COPIED:
        if (draft / name).exists():
            shutil.copyfile(draft / name, smaller / name)


def main(
    draft: Annotated[Path, typer.Argument(help="A Hugging Face directory with one weights file.")],
    smaller: Annotated[Path, typer.Argument(help="The folder that the smaller draft goes into.")],
    layer: Annotated[
        list[int] | None,
        typer.Option(help="Number of a layer to keep, from 0. May be repeated.", show_default="0"),
    ] = None,
) -> None:
    """Write a draft of some layers of another one."""
    layers = list(dict.fromkeys(layer or [0]))
    try:
        cut(draft, smaller, layers)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        refuse(error)
    print(f"{smaller}: layer {', '.join(map(str, layers))} of {draft}")


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command(help=__doc__)(main)
