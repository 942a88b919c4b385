"""Graph optimization, before there are kernels and after; its packages from the lowest up.

    decisions   what can be decided: layouts, chains, merges; their names
    sizes       how far results are needed where shapes are dynamic
    layouts     in which blocks of channels values lie
    fusion      which nodes are one kernel
    precision   what is stored in narrower types
    choices     what could be decided instead, and what each choice costs

`optimise` is all passes in their order.
"""
