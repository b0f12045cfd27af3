"""Passes of few fixed shapes over static buffers, captured once as CUDA graphs and replayed.

engine      sessions, one copy to the device and one read back per pass, or per chain of passes
model       weights on a device, and what computes with them
arithmetic  what the engine asks of it
kernels     passes as kernels of our own
operators   passes of torch's operators, where there are no kernels
decoder     these operators, on tensors that never move
shapes      which fixed shape their pass is padded to, and its arrays packed into one
kv          their keys and values on the device
static      passes of one shape: what is filled, copied and computed
ranking     the likeliest ids of their rows, ranked where the logits are
graphs      a computation captured where the device can, called where it cannot
device      which devices there are, and what arithmetic is asked of them
memory      what a model needs of a device's memory, and what would fit

On a processor replaying is calling, and Triton's interpreter runs the kernels: that is how all of
it is tested.
"""
