"""A queue of jobs, whose jobs run in turn: whose turn is next, how long, and what came of it."""
