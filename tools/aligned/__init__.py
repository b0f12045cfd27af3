"""Random pairs of real shapes that agree at a chosen rate, to time engines with.

making     finds the scale at which a pair agrees as asked, and writes both models
agreement  how often target and draft would choose the same token
weights    random weights, and how much the target's later layers contribute
writing    Hugging Face directories, shard by shard
shapes     the pairs that can be made
"""
