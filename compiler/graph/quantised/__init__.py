"""Integer arithmetic in the place of floats that stand for integers (see fold_quantised)."""
