"""The alternatives of a plan, what each choice costs, and how that is reported."""
