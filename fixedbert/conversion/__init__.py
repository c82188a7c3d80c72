"""Conversion: BERT and its relatives to FixedHeadBert and back, and exact growth of models."""
