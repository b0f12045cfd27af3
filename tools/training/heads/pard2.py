"""PARD-2 (arXiv 2605.08632): a draft with masks learns to read the target's states.

A projection of the states is added to each token's embedding. It is zero at first, so training
begins with the draft as it is. Windows lose their states at random, and chains begin behind a
random number of tokens with late states: such tokens and the masks behind them repeat the last
known states, as they do while the draft serves.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from card.engines.architecture import architecture_of
from card.engines.rotary import rotary_tables
from card.settings.draft_files import mask_ids_of
from card.speculation.drafters.heads.blocks import HeadShape
from card.speculation.drafters.heads.formats import head_of
from card.speculation.drafters.heads.pard2 import Pard2
from card.speculation.drafters.heads.reading import PROJECTION, WEIGHTS
from training.errors import TrainingError
from training.heads.chains import Chains, TextRows
from training.heads.files import NO_LABEL, labels_of, offsets_of, ranked_by
from training.heads.kind import Kind, Setup
from training.heads.recipe import HeadRecipe
from training.parallel.files import ranked_ids

_EMBEDDING = "model.embed_tokens.weight"
_SINK = 30.0
"""A number of the states that is so many times its usual size at a text's first token is left
out: that token's states hold what attention needs, and no meaning."""


class Pard2Recipe(HeadRecipe):
    """
    anchors          chains of masks behind a window
    late             share of windows in which chains lack the newest states
    most_late        tokens without states, at most
    without          share of windows without states
    text_rows        rows of a window that predict its next tokens
    soft_share       share of the loss that is the divergence from the target's distribution; the
                     rest is the cross-entropy with its tokens
    projection_rate, mask_rate   as `learning_rate`, of the projection, where numbers of one make
                     features as large as embeddings, and of the masks' vectors
    """

    windows: int = Field(2, ge=1)
    reads: float = Field(3.0, ge=1)
    learning_rate: float = Field(1e-4, gt=0)
    anchors: int = Field(48, ge=1)
    late: float = Field(0.5, ge=0, le=1)
    most_late: int = Field(16, ge=1)
    without: float = Field(0.1, ge=0, le=1)
    text_rows: int = Field(96, ge=1)
    soft_share: float = Field(0.9, ge=0, le=1)
    projection_rate: float = Field(5e-3, gt=0)
    mask_rate: float = Field(2e-4, gt=0)


class Pard2Training(Kind):
    """A draft with masks, its projection and the vectors of its masks. Its embedding and its output
    rows do not change."""

    recipe = Pard2Recipe
    head: Pard2

    def __init__(self, setup: Setup) -> None:
        recipe, target = setup.recipe, setup.target
        self._recipe, self._target, self._folder = recipe, target, setup.folder
        taps = self.taps(target.architecture.layers)
        tapped = len(taps) * target.architecture.hidden
        goes_on = (setup.folder / WEIGHTS).is_file()
        source = setup.folder if goes_on else setup.draft
        if source is None:
            raise TrainingError("--kind pard2 begins with a draft with masks: name it with --draft")
        self._config = _config_of(source, taps, tapped)
        said = head_of(self._config)
        assert said is not None
        if len(said.mask_ids) != recipe.steps - 1:
            raise TrainingError(
                f"{source} has {len(said.mask_ids)} masks; a block of {recipe.steps} (steps of "
                f"the recipe) needs {recipe.steps - 1}"
            )
        a = architecture_of(self._config, source / "config.json")
        if a.vocabulary != target.architecture.vocabulary:
            raise TrainingError(
                f"{source} has {a.vocabulary} ids, its target {target.architecture.vocabulary}"
            )
        tensors = {name: it.float() for name, it in load_file(source / WEIGHTS).items()}
        self._ranked = (
            ranked_by(tensors.pop("d2t")) if goes_on else ranked_ids(source, a.vocabulary)
        )
        embedding = tensors.pop(_EMBEDDING)
        own_head = tensors.pop("lm_head.weight", embedding)
        body = {name.removeprefix("model."): it for name, it in tensors.items()}
        body["lm_head.weight"] = own_head if goes_on else own_head[torch.from_numpy(self._ranked)]
        states = target.states(np.array(setup.texts[0, : recipe.window], np.int64))
        self._unit = _unit_of(states) * embedding[self._ranked].square().mean().sqrt()
        projection = torch.zeros(a.hidden, tapped)
        if goes_on:
            folded = load_file(setup.folder / PROJECTION)["target_proj.weight"].float()
            projection = torch.where(self._unit > 0, folded / self._unit, projection)
        biases = "layers.0.self_attn.q_proj.bias" in body, "layers.0.self_attn.o_proj.bias" in body
        self.head = Pard2(said, a, HeadShape(len(taps), tapped, len(self._ranked), biases))
        self.head.load_state_dict(body | {"target_proj.weight": projection})
        self.head.lm_head.weight.requires_grad_(False)
        self._mask_ids = [*said.mask_ids]
        self._written, self._scale = embedding, a.embedding_scale
        self._masks = nn.Parameter(embedding[self._mask_ids])
        self._labels = labels_of(self._ranked, a.vocabulary)
        self._rows_of_target = target.head[torch.from_numpy(self._ranked)]
        longest = recipe.window + recipe.steps
        self._rotary = torch.from_numpy(rotary_tables(a.rope, a.head_size, longest))

    @classmethod
    def taps(cls, layers: int) -> tuple[int, ...]:
        """The final norm, which also says what the target predicts, and three layers below."""
        return tuple(layers * quarters // 4 for quarters in (4, 3, 2, 1))

    def weights(self, rate: float) -> list[dict[str, Any]]:
        projection = self.head.target_proj.weight
        body = [
            weight
            for weight in self.head.parameters()
            if weight.requires_grad and weight is not projection
        ]
        return [
            {"params": body, "lr": rate},
            {"params": [projection], "lr": self._recipe.projection_rate},
            {"params": [self._masks], "lr": self._recipe.mask_rate},
        ]

    def loss(self, text: Tensor, states: Tensor, random: np.random.Generator) -> Tensor:
        recipe, count = self._recipe, len(text)
        target = self._of_target(states)
        known = states if random.random() >= recipe.without else torch.zeros_like(states)
        lag = int(random.integers(1, recipe.most_late + 1)) if random.random() < recipe.late else 0
        first, features, of_text = self._read(text, known)
        last = count - recipe.steps - 1
        anchors = torch.from_numpy(random.permutation(np.arange(lag + 1, last))[: recipe.anchors])
        of_chains, places = self._block(first, text, features, anchors, lag)
        rows = torch.from_numpy(random.permutation(count - 1)[: recipe.text_rows])
        weights = torch.ones(places.shape)
        weights[:, lag:] = self._reached(target, text, anchors)
        weights[:, :lag] /= max(1, lag * len(anchors))
        weights[:, lag:] /= weights[:, lag:].sum()
        return self._divergence(
            torch.cat([of_text[rows], of_chains.flatten(0, 1)]),
            torch.cat([rows, places.flatten()]),
            torch.cat([torch.full((len(rows),), 1 / len(rows)), weights.flatten()]),
            text,
            target,
        )

    def right(self, text: Tensor, states: Tensor, lags: int) -> Tensor:
        steps = self._recipe.steps
        first, features, of_text = self._read(text, states)
        anchors = torch.arange(lags, len(text) - steps, 8)
        found = []
        for lag in range(lags):
            of_chains, _ = self._block(first, text, features, anchors, lag)
            before = of_chains[:, lag - 1] if lag else of_text[anchors]
            block = torch.cat([before[:, None], of_chains[:, lag:]], dim=1)
            wanted = self._labels[text[anchors[:, None] + torch.arange(1, steps + 1)]]
            found.append(self.head.logits(block).argmax(-1) == wanted)
        return torch.stack(found)

    def write(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        config = json.dumps(self._config, indent=1) + "\n"
        (self._folder / "config.json").write_text(config, "utf-8")
        own = self.head.state_dict()
        projection = own.pop("target_proj.weight") * self._unit
        weights = {f"model.{name}": it for name, it in own.items() if name != "lm_head.weight"}
        embedding = self._written.clone()
        embedding[self._mask_ids] = self._masks.detach()
        weights |= {"lm_head.weight": own["lm_head.weight"], _EMBEDDING: embedding}
        _save({"target_proj.weight": projection.bfloat16()}, self._folder / PROJECTION)
        rounded = {name: it.detach().bfloat16() for name, it in weights.items()}
        _save(rounded | {"d2t": offsets_of(self._ranked)}, self._folder / WEIGHTS)

    # --- passes -------------------------------------------------------------------------------

    def _read(self, text: Tensor, states: Tensor) -> tuple[TextRows, Tensor, Tensor]:
        """Read a text: what its rows left for chains, their features and hidden states."""
        made = self.head.features(states * self._unit)
        features = torch.cat([torch.zeros_like(made[:1]), made[:-1]])
        first = TextRows()
        turn = self._rotary[:, : len(text)]
        embedded = self._written[text] * self._scale
        return first, features, self.head(embedded, features, (turn[0], turn[1]), first.attend)

    def _block(
        self, first: TextRows, text: Tensor, features: Tensor, anchors: Tensor, lag: int
    ) -> tuple[Tensor, Tensor]:
        """Read, behind the text up to `lag` tokens before each anchor, these tokens and the masks:
        hidden states [anchors, lag + masks, hidden], and the rows' positions."""
        masks, chains = len(self._mask_ids), len(anchors)
        late = text[anchors[:, None] + torch.arange(1 - lag, 1)]
        embedded = torch.cat([self._written[late], self._masks.expand(chains, -1, -1)], dim=1)
        places = anchors[:, None] + torch.arange(1 - lag, masks + 1)
        turn = self._rotary[:, places.flatten()]
        known = features[anchors - lag].repeat_interleave(lag + masks, dim=0)
        hidden = self.head(
            embedded.flatten(0, 1) * self._scale,
            known,
            (turn[0], turn[1]),
            Chains(first, anchors - lag + 1).attend,
        )
        return hidden.view(chains, lag + masks, -1), places

    # --- the loss -----------------------------------------------------------------------------

    @torch.no_grad()
    def _of_target(self, states: Tensor) -> Tensor:
        """The target's log-probabilities of the ranked ids [tokens, ids]."""
        normed = states[:, : self._rows_of_target.shape[1]]
        a = self._target.architecture
        logits = F.linear(normed, self._rows_of_target).float() * a.logit_scale
        if a.logit_cap:
            logits = a.logit_cap * torch.tanh(logits / a.logit_cap)
        return logits.log_softmax(dim=-1)

    def _reached(self, target: Tensor, text: Tensor, anchors: Tensor) -> Tensor:
        """[anchors, masks] how likely the target finds the tokens before the one that a mask
        predicts."""
        places = anchors[:, None] + torch.arange(1, len(self._mask_ids) + 1)
        labels = self._labels[text[places]]
        found = target[places - 1, labels.clamp(min=0)]
        return torch.where(labels < 0, 0.0, found.exp()).cumprod(dim=1)

    def _divergence(
        self, hidden: Tensor, places: Tensor, weights: Tensor, text: Tensor, target: Tensor
    ) -> Tensor:
        """Weighted sum over rows [rows, hidden] at these positions of the text."""
        given = self.head.logits(hidden).float().log_softmax(dim=-1)
        labels = self._labels[text[places + 1]]
        hard = F.nll_loss(given, labels, ignore_index=NO_LABEL, reduction="none")
        soft = F.kl_div(given, target[places], reduction="none", log_target=True).sum(dim=-1)
        share = self._recipe.soft_share
        loss: Tensor = (weights * ((1 - share) * hard + share * soft)).sum()
        return loss


def _config_of(source: Path, taps: tuple[int, ...], tapped: int) -> dict[str, Any]:
    """The configuration of the head. Raises `TrainingError`."""
    config: dict[str, Any] = json.loads((source / "config.json").read_text("utf-8"))
    try:
        masks = mask_ids_of(config)
    except ValueError as error:
        raise TrainingError(f"{source}/config.json: {error}") from error
    if not masks:
        raise TrainingError(
            f"{source} has no masks: tune it first with `./scripts/train_pair.py parallel`"
        )
    return config | {
        "pard2": True,
        "spd_type": "pard2",
        "pard_tokens": [*masks],
        "pard2_scale": 1.0,
        "pard2_proj_bias": False,
        "pard2_target_layers": [*taps],
        "pard2_target_dim": tapped,
        "tie_word_embeddings": False,
    }


def _unit_of(states: Tensor) -> Tensor:
    """[numbers] what makes the states [tokens, numbers] of a token about one vector of length 1."""
    usual = states[1:].pow(2).mean(dim=0).sqrt().clamp(min=1e-6)
    kept = torch.where(states[0].abs() > _SINK * usual, 0.0, 1 / usual)
    length: Tensor = kept / kept.count_nonzero().sqrt()
    return length


def _save(tensors: dict[str, Tensor], file: Path) -> None:
    part = file.with_name(f"{file.name}.part")
    save_file({name: it.contiguous() for name, it in tensors.items()}, part)
    part.replace(file)
