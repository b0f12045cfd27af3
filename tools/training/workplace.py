"""Where the stages of one pair leave their files, and who may write there."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from training.recipe import Recipe


class WorkplaceError(RuntimeError):
    """The output folder cannot be used as asked; the message says what to do."""


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
        """The draft as the stage `draft` left it."""
        return self.root / "undistilled"

    @property
    def own_texts(self) -> Path:
        return self.root / "own_texts.safetensors"


def claim(root: Path, recipe: Recipe, *, overwrite: bool = False) -> Workplace:
    """Take a folder for a pair of this recipe: an empty one, or one begun with the same recipe.

    With ``overwrite`` what the stages of another recipe left to continue from is removed; files
    that this script did not write are left where they are until a stage writes one of that name.

    Raises:
        WorkplaceError: the folder holds something else, and ``overwrite`` was not given.
    """
    place = Workplace(root)
    written = recipe.model_dump_json(indent=2) + "\n"
    if place.recipe.is_file():
        if place.recipe.read_text("utf-8") == written:
            return place
        if not overwrite:
            raise WorkplaceError(
                f"{root} holds a pair of another recipe ({place.recipe}): choose another "
                "--output, pass the same recipe, or start it afresh with --overwrite"
            )
        _forget(place)
    elif root.exists() and (not root.is_dir() or any(root.iterdir())) and not overwrite:
        raise WorkplaceError(
            f"{root} holds files that this script did not write: choose another --output, "
            "or give it away with --overwrite"
        )
    root.mkdir(parents=True, exist_ok=True)
    place.recipe.write_text(written, "utf-8")
    return place


def _forget(place: Workplace) -> None:
    """Remove what a former recipe left, so that no stage continues from it."""
    for folder in (place.corpus, place.tokenizer, place.model("target"), place.undistilled):
        shutil.rmtree(folder, ignore_errors=True)
    place.own_texts.unlink(missing_ok=True)
