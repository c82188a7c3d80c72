"""Comparison of models on the same rows: speed, scores, and differing predictions."""
