"""Convert a model for OpenVINO with its own exporter.

The weights of a Hugging Face directory stay as they are stored. A GGUF file is unpacked and
compressed to four bits again.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

FOUR_BITS = ("--weight-format", "int4", "--group-size", "32", "--ratio", "1.0")
"""As Q4_1 has them: groups of 32, each with a scale and a least value. The embedding gets eight
bits from the exporter and has eight in the file."""


def convert(model: Path, converted: Path, target: Path) -> None:
    if target.is_dir():
        _export(model, converted)
        return
    with TemporaryDirectory() as home:
        source: dict[str, Any] = {"gguf_file": target.name}
        if model == target:
            unpacked = AutoModelForCausalLM.from_pretrained(
                target.parent, dtype=torch.bfloat16, **source
            )
            unpacked.save_pretrained(home)
        else:
            shutil.copytree(model, home, dirs_exist_ok=True)
        # Both get one tokenizer: GenAI refuses any difference, even in the order of its parts.
        AutoTokenizer.from_pretrained(target.parent, **source).save_pretrained(home)
        _export(Path(home), converted, *(FOUR_BITS if model == target else ()))


def _export(checkpoint: Path, converted: Path, *options: str) -> None:
    command = [sys.executable, "-m", "optimum.commands.optimum_cli", "export", "openvino"]
    task = ("--task", "text-generation-with-past")
    subprocess.run([*command, "--model", checkpoint, *task, *options, converted], check=True)


if __name__ == "__main__":
    convert(*map(Path, sys.argv[1:]))
