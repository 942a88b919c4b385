"""ONNX models into graphs, and the model zoo. Everything that knows ONNX lives here."""
