"""Text corpora, tokenizers, GLUE task definitions and pretraining examples."""
