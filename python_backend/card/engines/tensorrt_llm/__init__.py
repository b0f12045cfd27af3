"""The TensorRT-LLM engine (NVIDIA GPUs): the LLM API, with CARD as its user-provided drafter.

Which interface facts this relies on, and where each was read, is listed in `docs/tensorrt_llm.md`.
`tensorrt_llm` itself is imported by `runtime` alone (and by `drafter`, in the worker), after
`CUDA_VISIBLE_DEVICES` is set: importing it opens the devices.

`loading`    settings to a loaded model and its loop
`runtime`    one `LLM` per process, its workers, and the event loop that its requests live on
`arguments`  settings to constructor arguments
`sampling`   a session's request to `SamplingParams`
`support`    which request parameters the runtime honours, beside candidates or at all
`bindings`   which engine request decodes which session: a table in shared memory
`drafter`    the hook: CARD's query before every target pass (runs in the engine's worker)
`lookup`     what the hook does for a batch of requests, without the runtime
`commits`    publishing what was accepted
`ranks`      one answer for all tensor-parallel ranks
`target`     the target's side in the Triton process: sessions to requests, results to commits
`tasks`      what runs for sessions: no failure is lost, a silent or broken engine is noticed
`workers`    one that ends is noticed, none outlives the Triton process that spawned it
"""
