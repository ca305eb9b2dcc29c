"""MapReduce runner."""
