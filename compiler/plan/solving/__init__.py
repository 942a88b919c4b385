"""How pairwise problems of choice are solved; `compiler.plan.solver` is what others call."""
