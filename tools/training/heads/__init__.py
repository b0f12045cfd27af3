"""Trains a head that reads the target's hidden states (EAGLE-3, arXiv 2503.01840).

Read the modules in this order: ``recipe`` (every number), ``states`` (the target, and its states of
a text), ``unrolling`` (the passes of a step), ``fitting`` (the loop), ``files`` (the head in the
format of `speculators`) and ``command``.
"""
