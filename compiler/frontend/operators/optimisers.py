"""Training optimisers of ai.onnx.preview.training: one step on each tensor, pointwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.numbers import Numbers
from tunefarm.compiler.frontend.onnx_node import OnnxNode

_DOMAIN = "ai.onnx.preview.training"


_Update = Callable[[Numbers, Numbers, Sequence[Numbers]], Sequence[Numbers]]


def _each(node: OnnxNode, states: int, graph: GraphBuilder, update: _Update) -> list[Value]:
    """The new tensors, then each of their states, as the operators list them.

    Inputs are the rate, the number of the step, then for all tensors the tensor, the gradient and
    the `states`.
    """
    rate, step, *given = node.present_inputs()
    count, rest = divmod(len(given), 2 + states)
    if rest or not count:
        raise node.invalid(f"{len(given)} tensors, gradients and states")
    if rate.type.size != 1 or step.type.size != 1:
        raise node.bad_shape("the rate and the number of the step must be scalars")
    speed, number = (Numbers(graph.reshape(value, ()), graph) for value in (rate, step))
    results: list[Sequence[Numbers]] = []
    for at in range(count):
        own = given[at::count]
        if any(value.type != own[0].type for value in own):
            raise node.bad_shape(f"gradient and states of {own[0].type} are of other types")
        operands = [Numbers(value, graph) for value in own]
        results.append(update(speed.cast(own[0].dtype), number, operands))
    return [result[part].value for part in range(1 + states) for result in results]


def _regularised(gradient: Numbers, norm: float, tensor: Numbers) -> Numbers:
    """The gradient of the loss and of half of the square of the tensor, times `norm`."""
    return gradient if norm == 0 else norm * tensor + gradient


@converter("Adagrad", 1, domain=_DOMAIN)
def adagrad(node: OnnxNode, graph: GraphBuilder) -> Sequence[Value]:
    decay, epsilon = node.floating("decay_factor", 0.0), node.floating("epsilon", 1e-6)
    norm = node.floating("norm_coefficient", 0.0)

    def update(rate: Numbers, step: Numbers, own: Sequence[Numbers]) -> Sequence[Numbers]:
        tensor, gradient, squares = own
        rate = rate / (step.cast(rate.dtype) * decay + 1.0)
        gradient = _regularised(gradient, norm, tensor)
        squares = squares + gradient * gradient
        scale = squares.apply("sqrt") + epsilon
        return tensor - rate * gradient / scale, squares

    return _each(node, 1, graph, update)


@converter("Adam", 1, domain=_DOMAIN)
def adam(node: OnnxNode, graph: GraphBuilder) -> Sequence[Value]:
    alpha, beta = node.floating("alpha", 0.9), node.floating("beta", 0.999)
    epsilon, norm = node.floating("epsilon", 1e-6), node.floating("norm_coefficient", 0.0)
    after = node.floating("norm_coefficient_post", 0.0)

    def update(rate: Numbers, step: Numbers, own: Sequence[Numbers]) -> Sequence[Numbers]:
        tensor, gradient, first, second = own
        gradient = _regularised(gradient, norm, tensor)
        first = alpha * first + (1 - alpha) * gradient
        second = beta * second + (1 - beta) * (gradient * gradient)
        count = step.cast(rate.dtype)
        kept = (1.0 - count.like(beta).apply("pow", count)).apply("sqrt")
        share = 1.0 - count.like(alpha).apply("pow", count)
        corrected = (step > 0).choose(rate * kept / share, rate)
        moved = tensor - corrected * (first / (second.apply("sqrt") + epsilon))
        return (1 - after) * moved if after else moved, first, second

    return _each(node, 2, graph, update)


@converter("Momentum", 1, domain=_DOMAIN)
def momentum(node: OnnxNode, graph: GraphBuilder) -> Sequence[Value]:
    alpha, beta = node.floating("alpha"), node.floating("beta")
    norm = node.floating("norm_coefficient")
    nesterov = node.choice("mode", "standard", ("standard", "nesterov")) == "nesterov"

    def update(rate: Numbers, step: Numbers, own: Sequence[Numbers]) -> Sequence[Numbers]:
        tensor, gradient, velocity = own
        gradient = _regularised(gradient, norm, tensor)
        share = (step > 0).choose(tensor.like(beta), 1.0)
        velocity = alpha * velocity + share * gradient
        direction = gradient + alpha * velocity if nesterov else velocity
        return tensor - rate * direction, velocity

    return _each(node, 1, graph, update)
