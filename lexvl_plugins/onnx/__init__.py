"""ONNX: encoders exported as graphs, and the runtime that computes them."""

from lexvl_anserini.ground.registry import CommandRow, RuntimeRow

EXPORT_ONNX = CommandRow("lexvl_plugins.onnx.export_onnx", "Train and encode", "Export an encoder as ONNX graphs")
RUNTIME = RuntimeRow("lexvl_plugins.onnx.loading:load_exported", "onnxruntime")
