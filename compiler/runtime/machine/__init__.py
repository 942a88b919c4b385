"""The CPU, its threads and its tools: what code is loaded into, run by, and assembled with."""
