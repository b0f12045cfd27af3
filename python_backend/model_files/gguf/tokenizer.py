"""The tokenizer that a GGUF file describes, token for token the model's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from model_files.gguf.header import Header
from model_files.gguf.pre_tokenizers import PRE_TOKENIZERS, UNNAMED, Pre, pre_tokenizer
from model_files.interface import ModelFilesError, TokenTable, special_tokens

MODELS = ("gpt2", "llama")
"""Values of ``tokenizer.ggml.model``: BPE over bytes, and SentencePiece's BPE."""

_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5
"""Types of tokens beside the words: special ones and others, which are never cut, and padding."""
_SPACE = "▁"


def build_tokenizer(header: Header, config: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer with `config`, the tokenizer's configuration. Raises `ModelFilesError`."""
    model = header.required("tokenizer.ggml.model", str)
    if model not in MODELS:
        raise ModelFilesError(
            f"{header.file}: tokenizer.ggml.model {model!r:.60} is not supported; "
            f"allowed: {', '.join(MODELS)}"
        )
    tokens = _tokens(header)
    try:
        build = _byte_level if model == "gpt2" else _sentencepiece
        tokenizer = build(header, tokens)
        _add_tokens(tokenizer, header, tokens, config)
        _add_ends(tokenizer, config)
    except ModelFilesError:
        raise
    except Exception as error:  # the library raises nothing more particular
        raise ModelFilesError(f"{header.file} holds no sound tokenizer: {error}") from error
    return tokenizer


def named_pre(header: Header) -> Pre | None:
    """What ``tokenizer.ggml.pre`` says; None: the file has no such field. Raises
    `ModelFilesError`."""
    name = header.value("tokenizer.ggml.pre", str)
    if not name:
        return None
    if name not in PRE_TOKENIZERS:
        raise ModelFilesError(
            f"{header.file}: tokenizer.ggml.pre {name!r:.60} is not supported; "
            f"allowed: {', '.join(sorted(PRE_TOKENIZERS))}"
        )
    return PRE_TOKENIZERS[name]


def token_table(header: Header) -> TokenTable:
    """Which token stands behind which id. Raises `ModelFilesError`."""
    tokens = _tokens(header)
    beside = (_CONTROL, _USER_DEFINED, _UNUSED)
    added = frozenset(token for token, kind in _typed(header, tokens) if kind in beside)
    return TokenTable({token: index for index, token in enumerate(tokens)}, added)


def _byte_level(header: Header, tokens: Sequence[str]) -> Tokenizer:
    pre = named_pre(header) or UNNAMED
    merges = _merges(header)
    if merges is None:
        raise ModelFilesError(f"{header.file}: tokenizer.ggml.merges is missing in its metadata")
    vocabulary = {token: index for index, token in enumerate(_spelt(tokens))}
    tokenizer = Tokenizer(
        BPE(
            vocabulary,
            merges,
            continuing_subword_prefix="",
            end_of_word_suffix="",
            ignore_merges=pre.takes_words,
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizer(pre)
    tokenizer.decoder = decoders.ByteLevel()
    # These are special in every vocabulary of this kind that has them.
    _add_special(tokenizer, ["<|endoftext|>"])
    return tokenizer


def _sentencepiece(header: Header, tokens: Sequence[str]) -> Tokenizer:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = _merges(header)
    if merges is None:
        merges = _merges_by_score(vocabulary, _scores(header, tokens))
    tokenizer = Tokenizer(BPE(vocabulary, merges, fuse_unk=True, byte_fallback=True))
    # Gemma's begin a text without the space that others put before it.
    spaced = header.value("tokenizer.ggml.add_space_prefix", bool) is not False
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
        _SPACE, prepend_scheme="first" if spaced else "never", split=False
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(_SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            *([decoders.Strip(" ", left=1)] if spaced else []),
        ]
    )
    _add_special(tokenizer, ["<s>", "</s>", "<unk>"])
    return tokenizer


def _add_tokens(
    tokenizer: Tokenizer, header: Header, tokens: Sequence[str], config: Mapping[str, Any]
) -> None:
    """Tell the tokenizer which tokens a text may hold as a whole.

    A token that byte-level spelling has changed is none of them: its text is not its name.
    """
    typed = _typed(header, tokens)
    _add_special(tokenizer, [token for token, kind in typed if kind == _CONTROL])
    user_defined = [token for token, kind in typed if kind == _USER_DEFINED]
    tokenizer.add_tokens([_whole(token) for token in _known(tokenizer, user_defined)])
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    named = special_tokens(config).values()
    _add_special(tokenizer, [token for token in named if token not in added])


def _add_special(tokenizer: Tokenizer, tokens: Iterable[str]) -> None:
    tokenizer.add_special_tokens([_whole(token) for token in _known(tokenizer, tokens)])


def _known(tokenizer: Tokenizer, tokens: Iterable[str]) -> list[str]:
    """Those of the vocabulary: others would become ids that the model has no row for."""
    return [token for token in tokens if token and tokenizer.token_to_id(token) is not None]


def _whole(token: str) -> AddedToken:
    return AddedToken(token, normalized=False)


def _add_ends(tokenizer: Tokenizer, config: Mapping[str, Any]) -> None:
    """Put the bos token before a prompt and the eos token behind it, as the file wants."""
    named = special_tokens(config)
    bos = [named["bos_token"]] if config.get("add_bos_token") and "bos_token" in named else []
    eos = [named["eos_token"]] if config.get("add_eos_token") and "eos_token" in named else []
    if bos or eos:
        tokenizer.post_processor = TemplateProcessing(
            single=[*bos, "$A", *eos],
            pair=[*bos, "$A", *eos, *bos, "$B", *eos],
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in {*bos, *eos}],
        )


def _tokens(header: Header) -> list[str]:
    tokens = _texts(header, "tokenizer.ggml.tokens")
    if tokens is None:
        raise ModelFilesError(f"{header.file}: tokenizer.ggml.tokens is missing in its metadata")
    return tokens


def _typed(header: Header, tokens: Sequence[str]) -> list[tuple[str, int]]:
    """Tokens with their types, as far as the file says any."""
    return list(zip(tokens, header.value("tokenizer.ggml.token_type", list) or [], strict=False))


def _merges(header: Header) -> list[tuple[str, str]] | None:
    written = _texts(header, "tokenizer.ggml.merges")
    if written is None:
        return None
    merges = [tuple(merge.split(" ")) for merge in written]
    for merge in merges:
        if len(merge) != 2:
            raise ModelFilesError(
                f"{header.file}: {' '.join(merge)!r:.60} in tokenizer.ggml.merges is no pair"
            )
    return [(left, right) for left, right in merges]


def _merges_by_score(
    vocabulary: Mapping[str, int], scores: Mapping[str, float]
) -> list[tuple[str, str]]:
    """SentencePiece merges whatever makes the token of the best score; a file lists no merges."""
    found: list[tuple[float, str, str]] = []
    for token, score in scores.items():
        cuts = ((token[:at], token[at:]) for at in range(1, len(token)))
        pairs = [pair for pair in cuts if pair[0] in vocabulary and pair[1] in vocabulary]
        pairs.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        found += [(score, left, right) for left, right in pairs]
    found.sort(key=lambda it: (it[0], len(it[1]), len(it[2])), reverse=True)
    return [(left, right) for _, left, right in found]


def _scores(header: Header, tokens: Sequence[str]) -> dict[str, float]:
    scores = header.value("tokenizer.ggml.scores", list)
    if scores is None or len(scores) != len(tokens):
        count = "missing" if scores is None else f"a list of {len(scores)}"
        raise ModelFilesError(
            f"{header.file}: tokenizer.ggml.scores is {count}; allowed: a number for each of "
            f"{len(tokens)} tokens, or tokenizer.ggml.merges"
        )
    return dict(zip(tokens, scores, strict=True))


def _texts(header: Header, key: str) -> list[str] | None:
    found = header.value(key, list)
    if found and not all(isinstance(text, str) for text in found):
        raise ModelFilesError(f"{header.file}: {key} is no list of texts")
    return found


def _byte_spelling() -> dict[int, str]:
    """The character for every byte in a byte-level vocabulary, as GPT-2 chose them: printable
    Latin-1 stands for itself, the rest is moved behind it."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)]
    printable += range(ord("®"), ord("ÿ") + 1)
    others = [byte for byte in range(256) if byte not in printable]
    moved = {byte: chr(256 + index) for index, byte in enumerate(others)}
    return {byte: chr(byte) for byte in printable} | moved


def _spelt(tokens: Iterable[str]) -> Iterator[str]:
    """The tokens in the alphabet of bytes; added ones may be written as their text."""
    spelling = _byte_spelling()
    alphabet = frozenset(spelling.values())
    for token in tokens:
        if alphabet.issuperset(token):
            yield token
        else:
            yield "".join(spelling[byte] for byte in token.encode("utf-8"))
