"""How kernels are called, for people."""

from __future__ import annotations

from tunefarm.compiler.runtime.spec.kernel_report import node_names


def test_a_kernel_is_called_by_its_first_nodes() -> None:
    assert (
        node_names(["conv", "", "relu", "conv", "add"], 2)
        == "conv + relu + 1 more node (and 2 more)"
    )
    assert node_names(["", ""], 2) == ""


def test_a_long_name_keeps_its_beginning_and_its_end() -> None:
    folder = "network/" * 20
    name = node_names([f"{folder}first/conv"], 0)
    assert name.startswith("network/network/")
    assert name.endswith("/first/conv")
    assert "…" in name and len(name) <= 100
