"""A built model as a library for C: header, implementation, examples."""
