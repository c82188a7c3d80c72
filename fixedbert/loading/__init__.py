"""Opening BERT-like checkpoints: families of models, weights, tokenizers and pooling."""
