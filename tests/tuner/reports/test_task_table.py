"""The table of kernels: what is expected while a search runs, claimed and confirmed at its end."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from tunefarm.tuner.reports.report import TaskStatus
from tunefarm.tuner.reports.task_table import TaskTable

SETTLED = TaskStatus(
    "conv_relu",
    "0123456789abcdef",
    3,
    64,
    2,
    default=4e-3,
    best=2e-3,
    ended="within 2 % of the best of this space, 64 measured",
    scattered=1,
    expected=2e-3,
    low=1.9e-3,
    high=2.1e-3,
    claimed=0.4,
    confirmed=0.5,
)
CLAIMED = TaskStatus(
    "matmul",
    "fedcba9876543210",
    1,
    9,
    0,
    default=2e-2,
    best=1.6e-2,
    expected=1.8e-2,
    claimed=0.8,
)
UNKNOWN = TaskStatus("softmax", "00000000ffffffff", 1, 0, 0, default=math.inf, best=math.inf)


def lines(
    *tasks: TaskStatus, width: int = 200, limit: int | None = None, confirmed: bool = False
) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width).print(TaskTable(tasks, limit, confirmed))
    return stream.getvalue().splitlines()


def row_of(text: list[str], kernel: str) -> list[str]:
    row = next(line for line in text if kernel in line)
    return [cell.strip() for cell in row.strip("│").split("│")]


def test_the_table_has_a_row_per_kernel_the_costliest_first() -> None:
    text = "\n".join(lines(SETTLED, UNKNOWN, CLAIMED))
    assert text.index("matmul") < text.index("conv_relu") < text.index("softmax")


def test_a_row_says_what_is_expected_while_the_search_runs() -> None:
    text = lines(SETTLED, CLAIMED)
    counts = ["conv_relu", "01234567", "3", "64", "2", "1"]
    assert row_of(text, "conv_relu") == [
        *counts,
        "4 ms",
        "2 ms (1.9 to 2.1)",
        "25.0 %",
        "2.00x",
        "within 2 % of the best of this space, 64 measured",
    ]
    assert row_of(text, "matmul")[-3:] == ["75.0 %", "1.11x", ""]


def test_what_was_claimed_stands_beside_what_was_confirmed() -> None:
    text = lines(SETTLED, CLAIMED, confirmed=True)
    header = [cell.strip() for cell in text[1].strip("┃").split("┃")]
    assert header[-3:-1] == ["claimed", "confirmed"]
    assert row_of(text, "conv_relu")[-3:-1] == ["2.50x", "2.00x"]
    assert row_of(text, "matmul")[-3:-1] == ["1.25x", "-"]


@pytest.mark.parametrize("confirmed", [False, True])
@pytest.mark.parametrize("width", [66, 80, 100, 120, 160])
def test_a_narrow_terminal_gets_fewer_columns_whose_figures_are_whole(
    width: int, confirmed: bool
) -> None:
    text = lines(SETTLED, CLAIMED, width=width, confirmed=confirmed)
    assert max(map(len, text)) <= width
    assert "2 ms (1.9 to 2.1)" in row_of(text, "conv_relu")
    assert ("confirmed" if confirmed else "speed-up") in text[1]
    for cell in row_of(text, "conv_relu")[:-1]:
        assert "…" not in cell


def test_a_long_table_says_how_much_it_leaves_out() -> None:
    text = "\n".join(lines(SETTLED, CLAIMED, UNKNOWN, limit=1))
    assert "conv_relu" not in text
    assert "and 2 more kernels" in text


def test_a_model_without_kernels_has_an_empty_table() -> None:
    assert "kernel" in lines()[1]
