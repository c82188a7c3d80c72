"""Text corpora, tokenizers and pretraining examples."""
