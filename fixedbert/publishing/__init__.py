"""Publishes checkpoints on the Hugging Face Hub, writes their model cards, and exports them to ONNX."""
