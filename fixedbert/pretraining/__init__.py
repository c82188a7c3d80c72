"""Pretraining: masked LM with next-sentence prediction (BERT, the paper), masked LM alone, or causal LM."""
