"""The search: tasks, the budget, and the strategies that propose candidates."""
