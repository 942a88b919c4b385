"""Loops -> LLVM IR -> object code; the only home of llvmlite code generation."""

from tunefarm.compiler.llvm.compile_kernel import CompiledKernel, compile_kernel

__all__ = ["CompiledKernel", "compile_kernel"]
