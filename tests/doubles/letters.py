"""A vocabulary of 24 tokens in which guides can be written."""

from __future__ import annotations

from llguidance import LLTokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from card.constraints.compiled import GuidedTokens

_TOKENS = [*"abcdefghijkl", "Ġ", "ab", "cd", "de", *'-12{}":', "<end>"]
END = len(_TOKENS) - 1


def _letters() -> GuidedTokens:
    merges = [("a", "b"), ("c", "d"), ("d", "e")]
    numbers = {token: number for number, token in enumerate(_TOKENS)}
    tokenizer = Tokenizer(models.BPE(numbers, merges))
    tokenizer.add_special_tokens([_TOKENS[END]])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    known = LLTokenizer(tokenizer.to_str(), n_vocab=len(_TOKENS), eos_token=END)
    return GuidedTokens(known, len(_TOKENS), (END,))


LETTERS = _letters()
