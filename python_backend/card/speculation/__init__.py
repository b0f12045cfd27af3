"""The speculation algorithms, one file each.

A system of the literature is one choice from each folder:

`drafters`    make candidates in the draft's process
`sources`     find candidates for a pass of the target
`acceptance`  decides which candidates become text
`pacing`      decides whether draft and target wait for each other
`control`     chooses pacing, rows and width of the tree by their measured gain

Each folder has one registry, a dictionary in its `__init__`. Settings, wire values, metric labels
and the benchmark's list come from the registries.
"""
