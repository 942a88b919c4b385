"""Object-code cache: code that was made before, found by everything that it was made from.

A key is the SHA-256 of the kernel, its schedule, the target, and of the compiler itself (its source
files and LLVM's version), so an entry is never out of date. Entries are files in a folder that any
number of processes may share; each has the SHA-256 of its contents, and a damaged one is made anew.
When the folder grows beyond its limit, what was not used for longest goes.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

import compiler
from compiler.kernels.kernel import FusedKernel
from compiler.kernels.serialize import kernel_to_json
from compiler.llvm.compile_kernel import CompiledKernel, compile_kernel, constant_layouts
from compiler.llvm.machine import object_code
from compiler.schedule.steps import Schedule
from compiler.target import Target

MOST_BYTES = 1 << 30
_SUFFIX = ".object"
_UNFINISHED = f"{_SUFFIX}.new"  # left behind by a process that was killed
_DIGEST_BYTES = 32
_Parts = tuple[dict[str, Any], bytes]


class ObjectCache:
    """Compiles what is not in its folder yet. Used by several threads and processes at once.

    A folder that cannot be written is no error: everything is compiled then.
    """

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self.folder = folder
        self.hits = 0
        self.misses = 0
        self._most_bytes = most_bytes

    def compile_kernel(
        self, kernel: FusedKernel, schedule: Schedule, target: Target, symbol: str
    ) -> CompiledKernel:
        """`compiler.llvm.compile_kernel.compile_kernel`, or what it gave before."""
        steps = schedule.to_json()
        key = _key("kernel", kernel_to_json(kernel), steps, target.to_json(), symbol)

        def make() -> _Parts:
            code = compile_kernel(kernel, schedule, target, symbol)
            facts = {"workspace_bytes": code.workspace_bytes, "parallel": code.parallel}
            return facts, code.object_code

        facts, code = self._found_or_made(key, make)
        layouts = constant_layouts(schedule)
        return CompiledKernel(symbol, code, facts["workspace_bytes"], layouts, facts["parallel"])

    def object_code(self, text: str, target: Target) -> bytes:
        """`compiler.llvm.machine.object_code`, or what it gave before."""
        key = _key("text", text, target.to_json())
        return self._found_or_made(key, lambda: ({}, object_code(text, target)))[1]

    def trim(self) -> None:
        """Remove the entries that were not used for longest while there are too many bytes."""
        try:
            entries = [(path, path.stat()) for path in self.folder.glob(f"*/*{_SUFFIX}*")]
        except OSError:
            return
        total = sum(entry.st_size for _, entry in entries)
        for path, entry in sorted(entries, key=lambda item: item[1].st_mtime):
            if total <= self._most_bytes:
                return
            with suppress(OSError):
                path.unlink()
            total -= entry.st_size

    def _found_or_made(self, key: str, make: Callable[[], _Parts]) -> _Parts:
        path = self.folder / key[:2] / f"{key[2:]}{_SUFFIX}"
        found = _read(path)
        if found is not None:
            self.hits += 1
            return found
        self.misses += 1
        made = make()
        _write(path, made)
        return made


def _key(*parts: object) -> str:
    text = json.dumps([_compiler_digest(), *parts], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def _compiler_digest() -> str:
    """What makes the code: this package's source files and LLVM."""
    digest = hashlib.sha256(".".join(map(str, llvm.llvm_version_info)).encode())
    root = Path(compiler.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(f"\0{path.relative_to(root).as_posix()}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _read(path: Path) -> _Parts | None:
    """An entry's facts and code; None if there is none or it is damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    with suppress(OSError):  # another user's entry serves as well
        os.utime(path)
    body = content[_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != content[:_DIGEST_BYTES]:
        return None
    head, _, code = body.partition(b"\n")
    return json.loads(head), code


def _write(path: Path, parts: _Parts) -> None:
    facts, code = parts
    body = json.dumps(facts).encode() + b"\n" + code
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(_UNFINISHED, dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(body).digest() + body)
        os.replace(temporary, path)
    except OSError:
        if temporary:
            with suppress(OSError):
                os.unlink(temporary)
