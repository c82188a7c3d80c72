"""Pretraining with masked LM and next-sentence prediction (as in BERT), masked LM only, or causal LM."""
