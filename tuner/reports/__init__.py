"""Reports: progress, results and the page about a database."""
