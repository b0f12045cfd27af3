"""Passes of few fixed shapes over static buffers, captured once as CUDA graphs and replayed.

engine      sessions, one copy to the device and one read back per pass, or per chain of passes
kernels     what computes a pass, in Triton (the language)
static      passes of one shape: what is filled, copied, and captured where the device can
ranking     the likeliest ids of their rows, ranked where the logits are
device      which devices there are, whether the kernels run on them, and whether a model fits

On a processor replaying is calling, and Triton's interpreter runs the kernels: that is how all of
it is tested.
"""
