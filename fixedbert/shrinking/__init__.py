"""Shrinking: prunes heads, head sizes and neurons to reach a target speed or size, and preserves the predictions."""
