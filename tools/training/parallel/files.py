"""Reads the draft and the texts; writes the tuned draft as a Hugging Face directory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from card.engines import EngineError
from card.engines.draft_vocabulary import read_draft_vocabulary
from training.errors import TrainingError
from training.parallel.draft import ParallelDraft

MASK_EMBEDDING = "mask_embedding"
MASK_IDS = "pard_tokens"
_EMBEDDING = "model.embed_tokens.weight"
Texts = npt.NDArray[np.integer[Any]]


def read_texts(path: Path, window: int) -> Texts:
    """The target's texts [texts, tokens].

    Raises:
        TrainingError: the file holds no array of texts of at least ``window`` tokens.
    """
    texts: Texts = np.load(path, mmap_mode="r")
    if texts.ndim != 2 or texts.dtype.kind not in "iu" or texts.shape[1] < window:
        raise TrainingError(
            f"{path} holds {texts.dtype} {list(texts.shape)}: integers [texts, tokens] with at "
            f"least {window} tokens a text are needed"
        )
    return texts


def read_draft(folder: Path, masks: int, start: Path | None = None) -> ParallelDraft:
    """A draft with ``masks`` masks, in float32.

    start  safetensors file with weights that replace the draft's. It may hold ``mask_embedding``,
           [hidden] or [masks, hidden]; without it a mask begins as the mean of the embeddings
    """
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} holds no model: name a Hugging Face directory")
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ranked = ranked_ids(folder, model.config.vocab_size)
    embedding = model.get_input_embeddings().weight.detach()
    vector = embedding[torch.from_numpy(ranked)].mean(dim=0)
    if start is not None:
        weights = load_file(start)
        vector = weights.pop(MASK_EMBEDDING, vector).float()
        unknown = model.load_state_dict(weights, strict=False).unexpected_keys
        if unknown:
            raise TrainingError(f"{start} holds {unknown[0]}, which {folder} does not have")
    if vector.ndim == 1:
        vector = vector.repeat(masks, 1)
    return ParallelDraft(model, vector[:masks], ranked)


def free_ids(folder: Path, texts: Texts, count: int) -> list[int]:
    """Ids for the masks, which no text contains and the draft does not rank: special tokens as far
    as there are some, then others.

    Raises:
        TrainingError: there are fewer such ids.
    """
    tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    config = json.loads((folder / "config.json").read_text("utf-8"))
    size = config["vocab_size"]
    ranked = ranked_ids(folder, size)
    taken = np.bincount(np.asarray(texts).ravel(), minlength=size) > 0
    named = [value for name, value in config.items() if name.endswith("_token_id")]
    taken[[value for value in named if type(value) is int]] = True
    if len(ranked) < size:
        taken[ranked] = True
    special = {token["id"] for token in tokenizer["added_tokens"] if token["special"]}
    free = np.flatnonzero(~taken).tolist()
    if len(free) < count:
        raise TrainingError(
            f"the texts contain all but {len(free)} ids of {folder}; {count} are needed for masks: "
            "name ids with --mask-id"
        )
    return sorted(sorted(free, key=special.__contains__)[-count:])


def write_draft(draft: ParallelDraft, ids: Sequence[int], source: Path, folder: Path) -> None:
    """Write the tuned draft beside copies of the other files of ``source``.

    The masks' vectors take the embedding rows ``ids``; ``config.json`` names these ids.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.is_file() and file.suffix != ".safetensors":
            shutil.copyfile(file, folder / file.name)
    config = json.loads((source / "config.json").read_text("utf-8"))
    config[MASK_IDS] = list(ids)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")
    weights: dict[str, Tensor] = {}
    for name, weight in draft.model.state_dict().items():
        if name == "lm_head.weight" and draft.model.config.tie_word_embeddings:
            continue
        weights[name] = weight.detach().bfloat16().clone()
    weights[_EMBEDDING][list(ids)] = draft.masks.detach().bfloat16()
    temporary = folder / "model.safetensors.part"
    save_file(weights, temporary, metadata={"format": "pt"})
    temporary.replace(folder / "model.safetensors")


def ranked_ids(folder: Path, vocabulary: int) -> npt.NDArray[np.int64]:
    """The ids that the draft ranks, ascending. Raises `TrainingError`."""
    try:
        listed = read_draft_vocabulary(folder, vocabulary)
    except EngineError as error:
        raise TrainingError(str(error)) from error
    return np.arange(vocabulary) if listed is None else listed.astype(np.int64)
