"""Shrinking: pruning of heads, head sizes and neurons to a target speed or size, with the predictions kept."""
