"""A service whose models are two GGUF files."""

from __future__ import annotations

from pathlib import Path

import gguf_models
from running_service import StartService
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig

from card_client import CardClient, GenerateRequest

TOKENS = [*sorted(ByteLevel.alphabet()), "ab", "<s>", "</s>", "<|user|>", "<|end|>"]
KINDS = [1] * (len(TOKENS) - 4) + [3] * 4
TEMPLATE = "{{ bos_token }}{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}"


def write(file: Path, layers: int, kind: str) -> None:
    shape = gguf_models.FAMILIES["llama"].to_dict()
    shape |= {"vocab_size": len(TOKENS), "num_hidden_layers": layers}
    about = gguf_models.with_tokens(
        TOKENS,
        KINDS,
        merges=["a b"],
        bos_token_id=TOKENS.index("<s>"),
        eos_token_id=TOKENS.index("</s>"),
        add_bos_token=True,
        chat_template=TEMPLATE,
    )
    gguf_models.write(file, "llama", kind, metadata=about, config=LlamaConfig(**shape))


async def test_a_service_serves_gguf_files(start_service: StartService, tmp_path: Path) -> None:
    for role, layers, kind in (("target", 2, "Q4_1"), ("draft", 1, "F16")):
        write(tmp_path / f"{role}.gguf", layers, kind)
    settings = {role: {"path": str(tmp_path / f"{role}.gguf")} for role in ("target", "draft")}
    limits = {"context_tokens": 256, "max_tokens": 64, "default_max_tokens": 16}
    with start_service({**settings, "limits": limits}) as service:
        async with CardClient(f"127.0.0.1:{service.settings.serving.grpc_port}") as client:
            template = await client.chat_template()
            assert template is not None
            prompt = template.render([{"role": "user", "content": "ab"}])
            assert prompt == "<|user|>ab<|end|>"
            answers = [
                await client.generate(
                    GenerateRequest(
                        prompt, max_tokens=32, decoding=decoding, return_num_input_tokens=True
                    )
                )
                for decoding in ("card", "autoregressive")
            ]
    assert answers[0].text == answers[1].text
    assert answers[0].num_input_tokens == 4  # with the bos token
