"""What could be decided instead, what each choice costs, and how that is told."""
