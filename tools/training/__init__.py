"""`scripts/train_pair.py`: drafts and heads for a target, trained on texts that the target wrote.

`own_texts`  a target writes such texts
`distil`     a draft learns the target's distributions; `divergences`, `fitting`
`parallel`   a draft learns to make a block of tokens in one pass
`heads`      heads that read the target's hidden states
`ngram_table`, `draft_vocabulary`, `cutting`  files that scripts of their own make
"""
