"""Training optimisers of ai.onnx.preview.training: one step on each tensor, pointwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode

_DOMAIN = "ai.onnx.preview.training"


class _Arithmetic:
    """Pointwise arithmetic on values and numbers."""

    def __init__(self, graph: GraphBuilder, like: Value) -> None:
        self._graph = graph
        self._dtype = like.dtype

    def value(self, operand: Value | float) -> Value:
        """The operand in the type of the tensors; a number as a constant."""
        if isinstance(operand, Value):
            return self._graph.cast(operand, self._dtype)
        return self._graph.scalar(operand, self._dtype)

    def __call__(self, operator: str, *operands: Value | float) -> Value:
        return self._graph.emit(operator, *map(self.value, operands))

    def scaled_sum(self, factor: float, tensor: Value, other: Value) -> Value:
        """factor tensor + other."""
        return other if factor == 0 else self("add", self("mul", factor, tensor), other)

    def is_later(self, step: Value, then: Value | float, first: Value | float) -> Value:
        """One value after the first step (number 0), another in it."""
        later = self._graph.emit("greater", step, self._graph.scalar(0, step.dtype))
        return self._graph.emit("where", later, self.value(then), self.value(first))


_Update = Callable[[_Arithmetic, Value, Value, Sequence[Value]], Sequence[Value]]


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
    rate, step = graph.reshape(rate, ()), graph.reshape(step, ())
    results: list[Sequence[Value]] = []
    for number in range(count):
        own = given[number::count]
        if any(value.type != own[0].type for value in own):
            raise node.bad_shape(f"gradient and states of {own[0].type} are of other types")
        results.append(update(_Arithmetic(graph, own[0]), rate, step, own))
    return [result[part] for part in range(1 + states) for result in results]


@converter("Adagrad", 1, domain=_DOMAIN)
def adagrad(node: OnnxNode, graph: GraphBuilder) -> Sequence[Value]:
    decay, epsilon = node.floating("decay_factor", 0.0), node.floating("epsilon", 1e-6)
    norm = node.floating("norm_coefficient", 0.0)

    def update(a: _Arithmetic, rate: Value, step: Value, own: Sequence[Value]) -> Sequence[Value]:
        tensor, gradient, squares = own
        rate = a("div", rate, a("add", a("mul", step, decay), 1.0))
        gradient = a.scaled_sum(norm, tensor, gradient)
        squares = a("add", squares, a("mul", gradient, gradient))
        scale = a("add", a("sqrt", squares), epsilon)
        moved = a("div", a("mul", rate, gradient), scale)
        return a("sub", tensor, moved), squares

    return _each(node, 1, graph, update)


@converter("Adam", 1, domain=_DOMAIN)
def adam(node: OnnxNode, graph: GraphBuilder) -> Sequence[Value]:
    alpha, beta = node.floating("alpha", 0.9), node.floating("beta", 0.999)
    epsilon, norm = node.floating("epsilon", 1e-6), node.floating("norm_coefficient", 0.0)
    after = node.floating("norm_coefficient_post", 0.0)

    def update(a: _Arithmetic, rate: Value, step: Value, own: Sequence[Value]) -> Sequence[Value]:
        tensor, gradient, first, second = own
        gradient = a.scaled_sum(norm, tensor, gradient)
        first = a("add", a("mul", alpha, first), a("mul", 1 - alpha, gradient))
        squares = a("mul", gradient, gradient)
        second = a("add", a("mul", beta, second), a("mul", 1 - beta, squares))
        kept = a("sqrt", a("sub", 1.0, a("pow", beta, step)))
        share = a("sub", 1.0, a("pow", alpha, step))
        corrected = a.is_later(step, a("div", a("mul", rate, kept), share), rate)
        scale = a("add", a("sqrt", second), epsilon)
        moved = a("sub", tensor, a("mul", corrected, a("div", first, scale)))
        return a("mul", 1 - after, moved) if after else moved, first, second

    return _each(node, 2, graph, update)


@converter("Momentum", 1, domain=_DOMAIN)
def momentum(node: OnnxNode, graph: GraphBuilder) -> Sequence[Value]:
    alpha, beta = node.floating("alpha"), node.floating("beta")
    norm = node.floating("norm_coefficient")
    nesterov = node.choice("mode", "standard", ("standard", "nesterov")) == "nesterov"

    def update(a: _Arithmetic, rate: Value, step: Value, own: Sequence[Value]) -> Sequence[Value]:
        tensor, gradient, velocity = own
        gradient = a.scaled_sum(norm, tensor, gradient)
        share = a.is_later(step, beta, 1.0)
        velocity = a("add", a("mul", alpha, velocity), a("mul", share, gradient))
        direction = a("add", gradient, a("mul", alpha, velocity)) if nesterov else velocity
        return a("sub", tensor, a("mul", rate, direction)), velocity

    return _each(node, 1, graph, update)
