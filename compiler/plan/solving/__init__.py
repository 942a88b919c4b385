"""How pairwise problems of choice are solved; others call `solver`."""
