"""Paged attention (Kwon et al., arXiv 2309.06180): every row looks its places up, page by page."""
