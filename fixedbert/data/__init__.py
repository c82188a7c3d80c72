"""Data: corpora, tokenizers, and the examples of pretraining."""
