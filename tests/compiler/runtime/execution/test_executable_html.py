"""What notebooks show of an executable and of its profile."""

from __future__ import annotations

import numpy as np

from tests.end_to_end.tiny_model import tiny_model
from tunefarm.compiler import build
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.runtime.execution.html_text import html_text, printable_text


def test_ports_and_kernels_are_listed() -> None:
    sized = build(import_model_proto(tiny_model("batch"), {"batch": ("1..4",)}))
    html = sized._repr_html_()
    assert "f32[batch:1..4, 3, 12, 12]" in html and "f32[batch:1..4, 10]" in html
    for kernel in sized.kernels:
        assert f">{html_text(kernel.title)}<" in html
    fixed = build(import_model_proto(tiny_model()))
    assert "f32[1, 3, 12, 12]" in fixed._repr_html_()
    profile = fixed.profile({"x": np.zeros((1, 3, 12, 12), np.float32)}, repeat=2)
    shown = profile._repr_html_()
    assert "the model takes" in shown and "sum of kernels" in shown
    assert all(f">{html_text(row.title)}<" in shown for row in profile.kernels)


def test_texts_of_others_are_seen_and_not_obeyed() -> None:
    assert html_text("<b a=\"x\" c='y'>&") == "&lt;b a=&quot;x&quot; c=&#x27;y&#x27;&gt;&amp;"
    assert printable_text("a\u202eb\x1b\nc\u200d µ") == r"a\u202eb\x1b\nc\u200d µ"
