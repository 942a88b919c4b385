"""Fused kernels as tensor expressions: what is computed, not how."""
