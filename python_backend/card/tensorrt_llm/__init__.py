"""CARD in the loop of TensorRT-LLM: the query is its hook for drafters, a correction its own token.

What it runs on is `card.engines.tensorrt_llm`. Which interface facts this relies on, and where each
was read, is listed in `docs/tensorrt_llm.md`.

`loading`    settings to a loaded model and its loop
`arguments`  settings to constructor arguments
`bindings`   which engine request decodes which session: a table in shared memory
`drafter`    the hook: CARD's query before every target pass (runs in the engine's worker)
`lookup`     what the hook does for a batch of requests, without the runtime
`commits`    publishing what was accepted
`target`     the target's side in the Triton process: sessions to requests, results to commits
"""
