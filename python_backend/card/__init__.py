"""CARD: cache-assisted parallel speculative decoding (arXiv 2508.04462) for Triton.

A draft model grows a tree of candidate tokens in a shared cache while the target model, at the
same time, queries the cache, verifies what it finds in one forward pass and corrects the draft.

Where the paper's verbs live: `decoding` (query, verify, correct, commit), `drafting` (re-root,
grow, publish), `cache` (the tree and the pool that carries it), `speculation` (every way to make
candidates, to accept them and to take turns).
"""
