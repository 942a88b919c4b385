"""A queue of jobs that run one after another: whose turn is next, how long, and the result."""
