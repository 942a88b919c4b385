"""Loops: explicit loops, vectors, register tiles and tails, made from a kernel and a schedule."""
