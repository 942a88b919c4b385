"""Schedule spaces: sketches, the choices that each leaves open, and the default schedule."""
