"""The cost model: features, learning, and what a database knows of other kernels."""
