"""`scripts/trtllm_check`: does the repository serve a pair on this machine's TensorRT-LLM?

command    the command line: what is checked in which order, and the verdict
served     texts, streams, kills and metrics of our service, and its speeds
own_modes  the speeds of NVIDIA's own plain and draft-target decoding
report     what is installed, and what was found, as lines and as JSON
"""
