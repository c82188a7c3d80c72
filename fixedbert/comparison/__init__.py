"""Comparison: measures the speed, scores and differing predictions of several models on the same rows."""
