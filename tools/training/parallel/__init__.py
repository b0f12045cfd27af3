"""Tunes a draft so that one pass makes a block of tokens (PARD, arXiv 2504.18583).

Read the modules in this order: ``recipe`` (every number), ``layout`` (which rows a pass has),
``draft`` (the model), ``objective`` (what is lowered), ``evaluation`` (what is measured),
``fitting`` (the loop, which resumes), ``files`` (what is read and written) and ``command``.
"""
