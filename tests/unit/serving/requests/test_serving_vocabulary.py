"""What a process that handles text reads of a model and of settings: no weights, clear errors."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import text_format
from real_pair import TARGET
from tokenizers import Tokenizer, models
from tritonclient.grpc import model_config_pb2

from card.serving.model_files import as_protobuf_text, chat_parameters
from card.serving.requests.refusal import Refusal
from card.serving.requests.vocabulary import Vocabulary
from card.settings import REPOSITORY_ROOT
from card_client.chat_template import template_of


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A directory with a trained tokenizer and a configuration to break."""
    (tmp_path / "tokenizer.json").write_bytes((TARGET / "tokenizer.json").read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 3072, "eos_token_id": 5}))
    return tmp_path


@pytest.mark.parametrize(
    ("file", "content", "end_ids"),
    [
        ("generation_config.json", {"eos_token_id": 7}, (7, 5)),
        ("generation_config.json", {"eos_token_id": [5, 8, 9]}, (5, 8, 9)),
        ("generation_config.json", {"eos_token_id": None}, (5,)),
        ("generation_config.json", {}, (5,)),
        ("tokenizer_config.json", {"eos_token": "<|pad|>"}, (5, 1)),
    ],
)
def test_a_text_ends_at_the_ids_of_configurations_and_tokenizer(
    checkpoint: Path, file: str, content: dict[str, object], end_ids: tuple[int, ...]
) -> None:
    (checkpoint / file).write_text(json.dumps(content))
    assert Vocabulary.load(checkpoint).end_ids == end_ids


CHATML = (
    "{% for message in messages %}{{ '<|pad|>' + message['role'] + '\n' + message['content'] }}"
    "{{ '<|endoftext|>' + '\n' }}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "end_ids"),
    [
        (CHATML, (5, 0)),
        ("{% for m in messages %}{{ m.content | trim + ' ' + eos_token }}{% endfor %}", (5, 1)),
        ("{% for m in messages %}{{ m.content }}\n{% endfor %}<|pad|>", (5, 1)),
        (
            "{% if tools is none %}{% for m in messages %}"
            "{% generation %}{{ m.content }}<|pad|>{% endgeneration %}{% endfor %}{% endif %}",
            (5, 1),
        ),
        ("{% for m in messages %}{{ m.content + '.' }}{% endfor %}", (5,)),
        ("{{ raise_exception('no') }}", (5,)),
        ("{% for", (5,)),
    ],
)
def test_a_text_ends_where_the_chat_template_ends_a_turn(
    checkpoint: Path, template: str, end_ids: tuple[int, ...]
) -> None:
    (checkpoint / "chat_template.jinja").write_text(template)
    if "eos_token" in template:
        config = json.dumps({"eos_token": {"content": "<|pad|>"}})
        (checkpoint / "tokenizer_config.json").write_text(config)
    assert Vocabulary.load(checkpoint).end_ids == end_ids


def post_processor(*tokens: str) -> dict[str, object]:
    """One that puts `tokens` before a prompt."""
    before = [{"SpecialToken": {"id": token, "type_id": 0}} for token in tokens]
    known = {token: {"id": token, "ids": [1], "tokens": [token]} for token in tokens}
    return {
        "type": "TemplateProcessing",
        "single": [*before, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [
            *before,
            {"Sequence": {"id": "A", "type_id": 0}},
            {"Sequence": {"id": "B", "type_id": 1}},
        ],
        "special_tokens": known,
    }


BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": True,
    "trim_offsets": True,
    "use_regex": True,
}


@pytest.mark.parametrize("saved_with", [None, (), ("<|pad|>",)])
@pytest.mark.parametrize("in_a_sequence", [False, True])
@pytest.mark.parametrize("wanted", [None, True, False])
def test_prompts_begin_as_the_tokenizers_configuration_wants(
    checkpoint: Path, saved_with: tuple[str, ...] | None, in_a_sequence: bool, wanted: bool | None
) -> None:
    file = checkpoint / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    processor = None if saved_with is None else post_processor(*saved_with)
    if in_a_sequence and processor is not None:
        processor = {"type": "Sequence", "processors": [BYTE_LEVEL, processor]}
    content["post_processor"] = processor
    file.write_text(json.dumps(content), encoding="utf-8")
    config = {"bos_token": "<|pad|>"} | ({} if wanted is None else {"add_bos_token": wanted})
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(config))
    tokens = Vocabulary.load(checkpoint).prompt_tokens("def f(n):")
    begins = wanted if wanted is not None else saved_with == ("<|pad|>",)
    assert tokens.count(1) == int(begins)
    assert (tokens[0] == 1) == begins
    plain = Tokenizer.from_file(str(TARGET / "tokenizer.json")).encode("def f(n):").ids
    assert tokens[int(begins) :] == plain


def test_a_bad_word_is_banned_at_the_start_and_after_a_space() -> None:
    vocabulary = Vocabulary.load(TARGET)
    spellings = vocabulary.bad_word_tokens(("import",))
    decoded = {vocabulary.tokenizer.decode(list(tokens)) for tokens in spellings}
    assert decoded == {"import", " import"}
    assert vocabulary.bad_word_tokens(()) == ()


def test_a_bad_word_that_the_target_cannot_write_needs_no_ban(checkpoint: Path) -> None:
    """The tokenizer knows a token more than the target has logits for."""
    file = checkpoint / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.add_special_tokens(["<pad>"])
    tokenizer.save(str(file))
    vocabulary = Vocabulary.load(checkpoint)
    assert tokenizer.token_to_id("<pad>") == vocabulary.size
    assert vocabulary.bad_word_tokens(("<pad>",)) == ()
    assert vocabulary.special_ids(("<pad>",)) == ()
    written = vocabulary.predicted_tokens("import")
    assert vocabulary.predicted_tokens("import<pad>os") == written
    assert vocabulary.bad_word_tokens(("<pad>", "import")) == vocabulary.bad_word_tokens(
        ("import",)
    )


def test_text_processes_load_neither_torch_nor_transformers() -> None:
    modules = "requests.wire requests.follower requests.vocabulary triton.attach"
    imports = ", ".join(f"card.serving.{name}" for name in modules.split())
    check = f"import sys, {imports}; print({{'torch', 'transformers'}} & set(sys.modules))"
    shown = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "set()"


def test_text_that_a_tokenizer_has_no_token_for_is_refused_by_its_field() -> None:
    letters = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="[UNK]"))
    vocabulary = Vocabulary(letters, 2, ())
    assert vocabulary.prompt_tokens("a") == [0]
    with pytest.raises(
        Refusal, match=r"^INVALID_ARGUMENT: text_input holds what .* leave that out"
    ):
        vocabulary.prompt_tokens("ü")
    with pytest.raises(Refusal) as refusal:
        vocabulary.bad_word_tokens(("ü",))
    assert refusal.value.field == "bad_words"


TEMPLATE = """{{ bos_token }}{% for message in messages %}
"\\\t{{ message.content }} \u200bé🙂'\x07
{% endfor %}"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(TARGET / name, tmp_path)
    config = {"bos_token": {"content": "<|pad|>"}, "add_bos_token": True, "unk_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return tmp_path


def read_back(parameters: dict[str, str]) -> dict[str, str]:
    """As Triton reads the configuration that they are added to."""
    ensemble = (REPOSITORY_ROOT / "model_repository/ensemble/config.pbtxt").read_text()
    added = as_protobuf_text(parameters)
    config = text_format.Parse(f"{ensemble}\n{added}", model_config_pb2.ModelConfig())
    return {name: value.string_value for name, value in config.parameters.items()}


def test_a_client_gets_the_template_its_tokens_and_the_token_that_is_added(model: Path) -> None:
    told = read_back(chat_parameters(model))
    assert told == {"chat_template": TEMPLATE, "bos_token": "<|pad|>", "leading_token": "<|pad|>"}
    template = template_of(told)
    assert template is not None
    prompt = template.render([{"role": "user", "content": "Hi"}])
    assert "Hi" in prompt
    assert "<|pad|>" not in prompt  # the server's tokenizer adds it
