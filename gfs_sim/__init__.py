"""GFS-like chunk store."""
