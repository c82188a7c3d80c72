"""Conversion between BERT-like models and FixedHeadBert, and growing models without changing their function."""
