"""Records: what trials become in the database, replayed and pruned."""
