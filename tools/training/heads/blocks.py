"""The common part of the kinds that make whole blocks from the target's states.

A block stands behind an anchor, a token of the text. At lag n the states of the n newest tokens
before the anchor are missing. The anchor's own states never are there while a head serves.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from card.engines.architecture import Architecture
from card.engines.rotary import rotary_tables
from card.speculation.drafters.heads.blocks import Turn, attention
from card.speculation.drafters.heads.formats import EAGLE3, OWN_FORMAT
from training.heads.files import NO_LABEL, config_of, labels_of, make_head, write_head
from training.heads.kind import Kind, Setup
from training.heads.recipe import HeadRecipe

_EVERY = 16
"""Tokens from one anchor of an evaluation to the next."""


class BlockRecipe(HeadRecipe):
    """
    anchors  blocks of a window
    layers   of the head
    """

    anchors: int = Field(32, ge=1)
    layers: int = Field(1, ge=1)


class BlockTraining(Kind):
    """A head that begins with the target's own output rows for the ids it ranks."""

    recipe = BlockRecipe
    kind: ClassVar[str]

    def __init__(self, setup: Setup) -> None:
        self._recipe, self._target, self._folder = setup.recipe, setup.target, setup.folder
        a = setup.target.architecture
        self._ranked = setup.most_frequent(self._recipe.ids)
        self._config = self._config_of(a, len(self._ranked))
        self.head: Any = make_head(self._config, setup.target, self._ranked, setup.folder)
        self._labels = labels_of(self._ranked, a.vocabulary)
        rope, size = self.head.architecture.rope, self.head.architecture.head_size
        longest = self._recipe.window + 4 * self._recipe.steps + self._recipe.lags
        self._rotary = torch.from_numpy(rotary_tables(rope, size, longest))

    def loss(self, text: Tensor, states: Tensor, random: np.random.Generator) -> Tensor:
        recipe = self._recipe
        lag = self._late(random)
        places = np.arange(lag + 1, len(text) - recipe.steps)
        anchors = torch.from_numpy(np.sort(random.permutation(places)[: recipe.anchors]))
        return self._loss(text, states, anchors, lag)

    def right(self, text: Tensor, states: Tensor, lags: int) -> Tensor:
        anchors = torch.arange(lags + 1, len(text) - self._recipe.steps, _EVERY)
        wanted = text[anchors[:, None] + torch.arange(1, self._recipe.steps + 1)]
        ids = torch.from_numpy(self._ranked)
        found = [self._drafted(text, states, anchors, lag) for lag in range(lags)]
        return torch.stack(
            [torch.where(it < 0, -1, ids[it.clamp(min=0)]) == wanted for it in found]
        )

    def write(self) -> None:
        write_head(self.head, self._config, self._ranked, self._folder)

    def _late(self, random: np.random.Generator) -> int:
        """The lag of a window."""
        return 0

    @abstractmethod
    def _loss(self, text: Tensor, states: Tensor, anchors: Tensor, lag: int) -> Tensor:
        """The loss of the blocks behind these anchors [blocks]."""

    @abstractmethod
    def _drafted(self, text: Tensor, states: Tensor, anchors: Tensor, lag: int) -> Tensor:
        """[blocks, steps] the places among the ranked ids of the tokens that are drafted; -1: the
        head drafts none."""

    def _config_of(self, a: Architecture, ids: int) -> dict[str, Any]:
        """The configuration of a head with layers of the target's shape, in the kind's format."""
        config = config_of(EAGLE3, a, self.taps(a.layers), ids, self._recipe.steps)
        taps = config.pop("eagle_aux_hidden_state_layer_ids")
        for field in ("norm_before_residual", "architectures", "speculators_model_type"):
            config.pop(field)
        config["transformer_layer_config"]["num_hidden_layers"] = self._recipe.layers
        own = {"aux_hidden_state_layer_ids": taps, "block_size": self._recipe.steps + 1}
        return {OWN_FORMAT: self.kind} | config | own

    def _behind(self, text: Tensor, rows: Tensor, starts: Tensor, known: Tensor) -> Tensor:
        """[blocks, rows, hidden] of blocks that see each their own rows, and of the text the
        `known` [blocks] first tokens.

        text    keys and values of the text's states, as of `context`
        rows    [blocks, rows, hidden]
        starts  [blocks] position of each block's first row
        """
        blocks, size = rows.shape[:2]
        tokens = text.shape[2]
        own = torch.arange(blocks).repeat_interleave(size)
        sees = torch.cat(
            [torch.arange(tokens) < known[own][:, None], own[:, None] == own[None]], dim=1
        )

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            kept = text[layer]
            every = torch.cat([kept[0], keys]), torch.cat([kept[1], values])
            return attention(queries, *every, sees)

        turn = self._turn((starts[:, None] + torch.arange(size)).flatten())
        hidden: Tensor = self.head(rows.flatten(0, 1), turn, attend)
        return hidden.view(blocks, -1, hidden.shape[-1])

    def _turn(self, positions: Tensor | slice) -> Turn:
        turn = self._rotary[:, positions]
        return turn[0], turn[1]

    def _read(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Features of a text's states, and their keys and values."""
        features = self.head.features(states)
        return features, self.head.context(features, self._turn(slice(0, len(features))))

    def _cross_entropy(self, logits: Tensor, wanted: Tensor) -> Tensor:
        """Of logits [blocks, places, ids] and tokens [blocks, places]; later places weigh less."""
        weights = self._recipe.step_weight ** torch.arange(wanted.shape[1])
        losses = F.cross_entropy(
            logits.flatten(0, 1),
            self._labels[wanted].flatten(),
            ignore_index=NO_LABEL,
            reduction="none",
        )
        loss: Tensor = (losses.view(wanted.shape) * weights).sum() / (len(wanted) * weights.sum())
        return loss
