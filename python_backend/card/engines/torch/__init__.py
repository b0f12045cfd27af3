"""The torch engine: a lean, row-invariant decoder for the Llama family."""
