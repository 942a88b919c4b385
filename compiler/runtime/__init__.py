"""What a built model is made of, and how it runs; its packages from the lowest up.

machine     the CPU, its threads, what code is loaded into and assembled with
spec        programs, ports, steps and guards: all that an executable is, verified
planning    the arena, packed constants, the steps of a run
entry       the one function that carries the steps out
artifact    the spec as a file
sizes       dynamic shapes
execution   the spec in this process: loaded, called, profiled
c_library   the spec as a library for C
"""
