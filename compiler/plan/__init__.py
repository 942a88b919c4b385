"""What the graph decides: layouts and fusion."""
