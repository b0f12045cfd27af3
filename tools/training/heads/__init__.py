"""Trains heads that read the target's hidden states.

Read the modules in this order: ``recipe`` (every number), ``states`` (the target, and its states of
a text), ``kind`` (what a kind of head has), ``chains`` (attention behind a text), ``eagle3``,
``peagle`` and ``pard2`` (a kind each), ``blocks`` (heads that make whole blocks from states),
``dspark``, ``specformer`` and ``ctc`` (kinds of these), ``kinds`` (all of them), ``fitting`` (the
loop and what it evaluates), ``files`` (heads in the format of `speculators`) and ``command``.
"""
