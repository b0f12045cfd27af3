"""A client learns the model's chat template from the server alone."""

from __future__ import annotations

import shutil
from pathlib import Path

from real_pair import TARGET
from running_service import StartService

from card_client import CardClient, GenerateRequest

TEMPLATE = "{{ bos_token }}# {% for m in messages %}{{ m.content }} é\n{% endfor %}def answer():"


async def test_the_server_tells_its_chat_template(
    start_service: StartService, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    shutil.copytree(TARGET, target)
    (target / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    with start_service({"target": {"path": str(target)}}) as service:
        async with CardClient(f"127.0.0.1:{service.settings.serving.grpc_port}") as client:
            template = await client.chat_template()
            assert template is not None
            prompt = template.render([{"role": "user", "content": "Say yes."}])
            assert prompt == "<|endoftext|># Say yes. é\ndef answer():"
            answer = await client.generate(GenerateRequest(prompt, max_tokens=8))
            assert answer.text
