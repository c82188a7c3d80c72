"""Shrinking: heads and feed-forward layers cut to what a text uses, with hidden states and outputs kept."""
