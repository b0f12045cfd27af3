"""vLLM as the target's engine, for processes without vLLM; `card.vllm` runs it.

`rules`      what a request may not ask of vLLM
`arguments`  settings to arguments of vLLM's `EngineArgs`; a request to its `SamplingParams`
`guides`     a guide as vLLM's structured output
"""
