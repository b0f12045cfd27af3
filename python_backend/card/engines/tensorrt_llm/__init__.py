"""What runs a model with TensorRT-LLM's LLM API (NVIDIA GPUs).

`tensorrt_llm` itself is imported by `runtime` alone (and by `card.tensorrt_llm.drafter`, in the
worker), after `CUDA_VISIBLE_DEVICES` is set: importing it opens the devices.

`runtime`   one `LLM` per process, its workers, and the event loop that its requests live on
`sampling`  a session's request to `SamplingParams`
`support`   which request parameters the runtime honours, beside candidates or at all
`tasks`     what runs for sessions: no failure is lost, a silent or broken engine is noticed
`workers`   one that ends is noticed, none outlives the Triton process that spawned it
"""
