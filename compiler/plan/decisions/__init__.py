"""What can be decided of a graph: the decisions, and the names by which they are known."""
