"""The model: what this repository loads as a target of its own, whatever engine is served."""

from __future__ import annotations

from numpy.typing import NDArray

from card.engines import Engine, SequenceTokens
from card.engines.row_costs import RowCosts
from card.loading import Examination, load_engine
from card.settings import load_settings
from tensorrt_llm.llmapi.llm_args import TorchLlmArgs

_CHUNK = 64


class ModelEngine:
    """Sessions and logits of chains of rows."""

    def __init__(self, args: TorchLlmArgs) -> None:
        model = {"path": args.model, "dtype": args.dtype}
        on_one = {"threads": 1, "threads_alone": 1}
        settings = load_settings(
            engine="auto",
            target=model | on_one,
            draft=model,
            cache={"slots": args.max_batch_size},
            limits={"context_tokens": args.max_seq_len},
        )
        # Its scheduler does not ask what passes cost, so nobody measures it.
        unmeasured = Examination(measure_row_costs=lambda _: RowCosts({1: 1.0}))
        self._engine: Engine = load_engine(settings, "target", examination=unmeasured)

    @property
    def vocabulary(self) -> int:
        return self._engine.vocabulary

    def open(self) -> int:
        return self._engine.open_session()

    def close(self, session: int) -> None:
        self._engine.close_session(session)

    def prefill(self, session: int, tokens: list[int]) -> NDArray:
        """Logits behind the last of the tokens."""
        found = None
        for start in range(0, len(tokens), _CHUNK):
            chunk = tokens[start : start + _CHUNK]
            (found,) = self._engine.forward([SequenceTokens(session, chunk, logits=1)])
            self._engine.commit_kv(session, range(len(chunk)))
        assert found is not None
        return found.row(0)

    def forward(self, batch: list[tuple[int, list[int]]]) -> list[list[NDArray]]:
        """Logits of every row of every (session, tokens), in one pass."""
        rows = [SequenceTokens(session, tokens) for session, tokens in batch]
        return [
            [logits.row(row) for row in range(len(tokens))]
            for logits, (_, tokens) in zip(self._engine.forward(rows), batch, strict=True)
        ]

    def commit_kv(self, session: int, rows: int) -> None:
        """The first so many rows were right; the rest is rewound."""
        self._engine.commit_kv(session, range(rows))
