"""Encoders as ONNX graphs: exported from the towers of torch, and run by ONNX Runtime without torch."""
