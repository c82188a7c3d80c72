"""Corpora, tokenizers, pretraining examples, and the data of the fine-tuning tasks."""
