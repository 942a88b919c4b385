"""Integer arithmetic instead of floats that stand for integers (see fold_quantised)."""
