"""The files of the stages of one pair, and the lock of their folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from training.errors import TrainingError
from training.recipe import Recipe


@dataclass(frozen=True)
class Workplace:
    """The folder that holds one pair and all that its making needs."""

    root: Path

    @property
    def recipe(self) -> Path:
        return self.root / "recipe.json"

    @property
    def corpus(self) -> Path:
        return self.root / "corpus"

    @property
    def tokenizer(self) -> Path:
        return self.root / "tokenizer"

    def model(self, role: str) -> Path:
        """The Hugging Face directory of ``target`` or ``draft``."""
        return self.root / role

    @property
    def undistilled(self) -> Path:
        """The draft as the corpus taught it."""
        return self.root / "undistilled"

    @property
    def own_texts(self) -> Path:
        return self.root / "own_texts.safetensors"


def claim(root: Path, recipe: Recipe) -> Workplace:
    """Take a folder for a pair of this recipe: an empty one, or one begun with the same recipe.

    Raises:
        TrainingError: the folder holds something else.
    """
    place = Workplace(root)
    written = recipe.model_dump_json(indent=2) + "\n"
    if place.recipe.is_file():
        if place.recipe.read_text("utf-8") == written:
            return place
        raise TrainingError(
            f"{root} holds a pair of another recipe ({place.recipe}): choose another "
            "--output, or pass the same recipe"
        )
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise TrainingError(
            f"{root} holds files that this script did not write: choose another --output"
        )
    root.mkdir(parents=True, exist_ok=True)
    place.recipe.write_text(written, "utf-8")
    return place
