"""The chat target answers in the words that it is known for."""

from __future__ import annotations

from card.engines import SequenceTokens
from card.engines.calibration import known_invariant
from card.engines.interface import RowCosts
from card.loading import Examination, load_engine
from card.settings import REPOSITORY_ROOT, load_settings
from card_client.chat_template import SYSTEM
from model_files import model_at, model_files_of

_TOKENS = 8


def test_the_first_question_that_a_stranger_asks_is_answered_in_english() -> None:
    """Whatever rounds otherwise from one build to the next must not turn it."""
    target = model_at(REPOSITORY_ROOT / "models/target")
    settings = load_settings(target={"path": str(target)})
    unexamined = Examination(
        lambda engine: known_invariant(engine, engine.options),
        lambda _: None,
        lambda _: RowCosts({1: 1.0}),
    )
    engine = load_engine(settings, "target", graph_rows=(), examination=unexamined)
    tokenizer = model_files_of(target).tokenizer()
    turns = [("system", SYSTEM), ("user", "What is the capital of France?"), ("assistant", "")]
    prompt = "".join(f"<|im_start|>{role}\n{said}<|im_end|>\n" for role, said in turns)
    tokens = tokenizer.encode(prompt.removesuffix("<|im_end|>\n")).ids
    session, answer = engine.open_session(), list[int]()
    while len(answer) < _TOKENS:
        (logits,) = engine.forward([SequenceTokens(session, tokens, logits=1)])
        engine.commit_kv(session, range(len(tokens)))
        tokens = [int(logits.row(0).argmax())]
        answer += tokens
    assert tokenizer.decode(answer).startswith("The capital of France is Paris.")
