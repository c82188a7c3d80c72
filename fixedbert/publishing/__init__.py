"""Publishing: a checkpoint on the Hub, and as ONNX."""
