"""A queue of jobs, worked off in turns: whose turn is next, how long, and what came of it."""
