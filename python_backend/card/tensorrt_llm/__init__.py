"""CARD in the loop of TensorRT-LLM: the query is its hook for drafters, a correction its own token.

`card.engines.tensorrt_llm` runs the models. `docs/tensorrt_llm.md` lists the interface facts that
this relies on, and where each was read.

`loading`   settings to constructor arguments and to a loaded model
`bindings`  which engine request decodes which session: a table in shared memory
`drafter`   the hook: CARD's query before every target pass (runs in the engine's worker)
`lookup`    what the hook does for a batch of requests, without the runtime
`target`    the target's side in the Triton process: sessions to requests, results to commits
"""
