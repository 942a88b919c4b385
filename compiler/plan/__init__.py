"""Graph optimization, before there are kernels and after; its packages from the lowest up.

    sizes       how far results are needed where shapes are dynamic
    layouts     in which blocks of channels values lie
    fusion      which nodes are one kernel
    precision   what is stored in narrower types
    choices     which chains a build has, by estimates

`optimise` is all passes in their order.
"""
