"""Graphs for ONNX and OpenVINO."""
