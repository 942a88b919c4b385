"""How matrix tiles (AMX) are set up: once in each thread, for all kernels of a run."""

from __future__ import annotations

from typing import NamedTuple

CONFIGURATION_BYTES = 64
SET_UP = "llvm.x86.ldtilecfg"
RELEASE = "llvm.x86.tilerelease"
TILED = 256
"""A flag of a parallel loop: its body uses tiles, which the threads of a team set up for it. OpenMP
has no such flag, and is not used where there are tiles."""


class TilePalette(NamedTuple):
    """How many matrix tiles there are, and what each can hold: rows, and bytes of a row."""

    tiles: int = 8
    rows: int = 16
    row_bytes: int = 64

    def configuration(self) -> bytes:
        """What LDTILECFG reads: palette 1, and every tile in its full size."""
        row_bytes = self.row_bytes.to_bytes(2, "little") * self.tiles
        text = bytes([1]) + bytes(15) + row_bytes.ljust(32, b"\0") + bytes([self.rows]) * self.tiles
        return text.ljust(CONFIGURATION_BYTES, b"\0")


FULL_PALETTE = TilePalette()
VECTOR_PALETTE = TilePalette(tiles=14, rows=2, row_bytes=16)
"""Tiles of 64-bit Arm, which are vectors: nothing sets them up."""


def configuration_ir(name: str, text: bytes) -> str:
    """A constant of this name for `SET_UP`."""
    escaped = "".join(f"\\{byte:02x}" for byte in text)
    return f'@{name} = private constant [{len(text)} x i8] c"{escaped}"'


def tile_shape_text(shapes: dict[int, tuple[int, int]]) -> bytes:
    """What `SET_UP` reads for tiles of these rows and bytes per row, by number."""
    every = [shapes.get(tile, (0, 0)) for tile in range(16)]
    row_bytes = b"".join(size.to_bytes(2, "little") for _, size in every)
    return bytes([1]) + bytes(15) + row_bytes + bytes(rows for rows, _ in every)


def set_up_ir(palette: TilePalette, name: str) -> str:
    """Functions `name`.begin and `name`.end, which set up all tiles in full, and release them."""
    attribute = 'noinline nounwind "target-features"="+amx-tile"'
    return (
        f"{configuration_ir(f'{name}.shapes', palette.configuration())}\n"
        f"declare void @{SET_UP}(ptr)\ndeclare void @{RELEASE}()\n"
        f"define internal void @{name}.begin() {attribute} {{\n"
        f"  call void @{SET_UP}(ptr @{name}.shapes)\n  ret void\n}}\n"
        f"define internal void @{name}.end() {attribute} {{\n"
        f"  call void @{RELEASE}()\n  ret void\n}}\n"
    )
