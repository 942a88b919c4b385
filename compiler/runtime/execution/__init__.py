"""A built model in this process: loaded, called from Python, profiled, shown."""
