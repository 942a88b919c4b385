"""What a built model is made of, and how it runs; its rooms from the lowest up.

machine     the CPU, its threads, what code is loaded into and assembled with
spec        programs, ports, steps and guards: all that an executable is, verified
planning    the arena, packed constants, the steps of a run
entry       the one function that carries the steps out
artefact    the spec as a file
sizes       sizes that are known at run time only
execution   the spec in this process: loaded, called, profiled
c_library   the spec as a library for C
"""
