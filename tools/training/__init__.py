"""Trains a draft model and a target model that share a tokenizer, from Python sources.

Read the modules in the order of the work: ``recipe`` (every number), ``workplace`` (where files
lie), ``corpus``, ``tokenization``, ``architecture``, ``fitting`` (the one training loop),
``decoding``, ``distillation``, ``agreement`` and, holding them together, ``stages``.
"""
