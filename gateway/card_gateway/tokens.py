"""Which part of a text goes with which log-probability."""

from __future__ import annotations

from tokenizers import Tokenizer


class TokenTexts:
    """Cuts a text into as many pieces as tokens wrote it.

    Triton's wire carries the log-probability of every token and the text, not the tokens. The
    pieces are those of the tokenizer, which writes most texts as the model did. Where the counts
    differ, because the model spelt a word otherwise or a stop word took part of the text away, the
    last piece takes the rest, or pieces at the end are empty.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def cut(self, text: str, count: int) -> list[str]:
        """`count` pieces that concatenate to `text`; none if `count` is 0."""
        if count == 0:
            return []
        pieces, begin = [], 0
        for _, end in self._tokenizer.encode(text, add_special_tokens=False).offsets:
            end = max(begin, end)
            pieces.append(text[begin:end])
            begin = end
        pieces = (pieces + [""] * count)[:count]
        pieces[-1] += text[sum(map(len, pieces)) :]
        return pieces
