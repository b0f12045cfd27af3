"""Every way to speculate, one file an algorithm.

A system of the literature is a choice in each folder:

`drafters`    who makes candidates, in the draft's process
`sources`     what the target adds to a query by itself
`acceptance`  what makes a candidate final
`pacing`      who waits for whom
`control`     what pays: which pacing, how many rows, how wide a tree

Each folder has one registry, a dictionary in its `__init__`. Settings, wire values, metric labels
and the benchmark's list are made from the registries.
"""
