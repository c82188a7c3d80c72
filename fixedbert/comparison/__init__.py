"""Compares the speed, scores and predictions of several models on the same rows."""
