"""The zoo: well-known topologies as ONNX models with seeded random weights."""

from tunefarm.compiler.frontend.zoo.models import (
    build_model,
    dynamic_shapes,
    model_names,
    save_model,
    write_model,
)

__all__ = ["build_model", "dynamic_shapes", "model_names", "save_model", "write_model"]
