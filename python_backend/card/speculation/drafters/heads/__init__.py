"""Drafts that read the target's hidden states.

`formats`     what a head's configuration says, in the formats of several projects
`reading`     reads and checks a head's configuration
`loading`     reads a head's tensors; the embedding and the output matrix may be the target's
`blocks`      the layers that heads share, as torch modules
`eagle3`      EAGLE-3 and P-EAGLE
`pard2`       PARD-2
`dspark`      DSpark, and DFlash, which is DSpark without a serial head
`specformer`, `ctc`   SpecFormer and the CTC drafter
`passes`      computes these modules in PyTorch or in OpenVINO
`base`        the part of the interface of engines that all heads share
`engine`      runs EAGLE-3, P-EAGLE and PARD-2: rows of sessions, and their KV
`block_engine`   runs the others, which make whole blocks from the target's states
`drafter`     grows trees with these engines, as `drafters/tree.py` does with a draft model

A head reads states that may come late or never. A token without its states costs agreement and
nothing else: `engine` puts states in their place that the head computed itself, or repeats those
of the token before; to `block_engine` the token is one that a block begins with, or cannot see.
"""
