"""Models in one file, as llama.cpp writes them."""
