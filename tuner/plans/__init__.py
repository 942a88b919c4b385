"""What the graph decides: a phase of a job before the search for schedules."""
