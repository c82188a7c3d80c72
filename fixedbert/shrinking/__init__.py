"""Prunes heads, head sizes and neurons to a target speed or size while preserving the predictions."""
