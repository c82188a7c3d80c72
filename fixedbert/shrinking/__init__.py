"""Prunes heads, parts of heads and neurons to reach a speed or size, with little change in the predictions."""
