"""The strategies of a search, a file each: the file's name is the strategy's, nothing lists them.

A file has `make_strategy(problem)`, which gives a `tunefarm.tuner.search.strategy.Strategy`.
"""
