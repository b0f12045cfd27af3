"""A pass as a few kernels in Triton (the language), for bfloat16 and float16 on a device.

products   partial sums of x W^T: every multiprocessor reads a share of the weights
finishing  partial sums added in a fixed order, with what the decoder does next to them
attention  keys and values read where their pages lie, rows of a tree by their paths
ranking    the likeliest ids of rows of logits, with the noise of sampling
pages      keys and values of every layer in pages, and the table of the lanes' pages
passes     rows of sessions as arrays of a fixed shape, packed into one
decoder    the order of the kernels in a pass

A row's bits depend on its own token path alone: no sum's order depends on how many rows share the
pass, where they stand in it, or where keys and values lie. `calibration.check_row_invariance`
proves it on the device at hand, or the model is refused.
"""
