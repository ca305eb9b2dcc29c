"""Errors of the graph.

::

    GraphError                    everything that this package raises by itself
    ├── BadGraph   (ValueError)   the graph can never run as built
    ├── NodeFailed                the function of a node raised, or its value cannot travel
    └── TooLarge   (MemoryError)  the plan does not fit in memory
"""

from __future__ import annotations


class GraphError(Exception):
    """Anything that goes wrong with a graph."""


class BadGraph(GraphError, ValueError):
    """The graph can never run as built; nothing was computed."""


class NodeFailed(GraphError):
    """The function of a node raised; ``traceback_text`` is the user's own, ``__cause__`` what it raised."""

    #: On the way from another process: the pickle of what was raised, where it has one.
    packed_cause: bytes = b""

    def __init__(self, message: str, traceback_text: str = "") -> None:
        super().__init__(message, traceback_text)
        self.message = message
        self.traceback_text = traceback_text

    def __str__(self) -> str:
        return self.message


class TooLarge(GraphError, MemoryError):
    """The plan does not fit in the memory that it was given; nothing was computed, or what was is thrown away."""
