"""What runs a model with TensorRT-LLM's LLM API (NVIDIA GPUs).

`tensorrt_llm` itself is imported by `runtime` alone (and by `card.tensorrt_llm.drafter`, in the
worker), after `CUDA_VISIBLE_DEVICES` is set: importing it opens the devices.

`runtime`   one `LLM` per process, the event loop of its requests, and what runs there for sessions
`chains`    the requests of a draft
`requests`  a session's request as `SamplingParams`, and what the runtime does not honour
`workers`   a worker that ends is noticed, none outlives the Triton process that spawned it
"""
