"""Runs in vLLM's environment: what vLLM alone answers, as JSON on the last line.

Usage: vllm_alone.py MODEL CONTEXT, with a JSON list of requests on standard input: `prompt` (text),
`sampling` (arguments of vLLM's `SamplingParams`) and `guide` (those of its structured outputs).
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "2",
}


def main(model: str, context: int) -> None:
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    engine = LLM(
        model=model,
        dtype="float32",
        max_model_len=context,
        max_num_seqs=16,
        enforce_eager=True,
        structured_outputs_config={"backend": "guidance"},
    )

    def sampling(request: dict[str, Any]) -> SamplingParams:
        made = SamplingParams(**{"temperature": 0.0, **request["sampling"]})
        if request["guide"]:
            made.structured_outputs = StructuredOutputsParams(**request["guide"])
        return made

    requests = json.load(sys.stdin)
    outputs = engine.generate(
        [request["prompt"] for request in requests],
        [sampling(request) for request in requests],
        use_tqdm=False,
    )
    answers = [(one.outputs[0].text, one.outputs[0].cumulative_logprob) for one in outputs]
    print(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
