"""What lies beside a model's weights: configuration, tokenizer, chat template, ids that end a text.

A model is a Hugging Face directory or a GGUF file. This package loads no weights and imports
nothing of `card`, so that servers, the gateway and scripts read a model's files in one way.
"""

from model_files.interface import ModelFiles, ModelFilesError, most_positions, sliding_window
from model_files.opening import model_at, model_files_of
