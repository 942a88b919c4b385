"""What a build decides of a graph by estimates, and the estimates."""
