"""Passes of few fixed shapes over static buffers, captured once as CUDA graphs and replayed.

engine   sessions, one copy to the device and one read back per pass
decoder  the eager operators of a pass, on tensors that never move
shapes   which fixed shape a pass is padded to, and the arrays of a pass packed into one
graphs   a computation captured where the device can, called where it cannot
kv       keys and values on the device
device   which devices there are, and what arithmetic is asked of them
memory   what a model needs of a device's memory, and what would fit

Every test of it runs on a processor, where replaying is calling; docs/gpu.md says what has run on
a GPU.
"""
