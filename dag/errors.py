"""Errors of the graph.

::

    GraphError                    everything that this package raises by itself
    ├── BadCollective (ValueError)   a collective, its ranks or what they bring does not fit
    │   └── RanksDiffer               ranks called different collectives, or brought what does not fit together
    ├── RankFailed (RuntimeError) a rank died, raised, left or came too late
    ├── BadGraph   (ValueError)   the graph can never run as built
    │   ├── BadTensor                     shapes or dtypes do not fit
    │   ├── NotDifferentiable (TypeError) there is no derivative to give
    │   └── UnknownOperator   (LookupError)  no table has the operator, or the backend no kernel for it
    ├── NodeFailed                the function of a node raised, or its value cannot travel
    │   ├── NotFinite (FloatingPointError)   a value is NaN or infinite, where that is checked
    │   └── OutOfRange (IndexError)          an id is outside the table that it is to be looked up in
    └── TooLarge   (MemoryError)  the plan does not fit in memory
"""

from __future__ import annotations


class GraphError(Exception):
    """Anything that goes wrong with a graph."""


class BadCollective(GraphError, ValueError):
    """A collective can never run as asked for, or its schedule does not do what it says."""


class RanksDiffer(BadCollective):
    """Ranks called different collectives at the same turn, or brought shapes, dtypes or operators that do not fit."""


class RankFailed(GraphError, RuntimeError):
    """A rank died, raised, left or came too late; ``rank`` is its number, -1 for the launcher.

    ``traceback_text`` is the rank's own where its function raised, and ``__cause__`` what it raised.
    """

    def __init__(self, message: str, rank: int, traceback_text: str = "") -> None:
        super().__init__(message, rank, traceback_text)
        self.message = message
        self.rank = rank
        self.traceback_text = traceback_text

    def __str__(self) -> str:
        return self.message


class BadGraph(GraphError, ValueError):
    """The graph can never run as built; nothing was computed."""


class BadTensor(BadGraph):
    """Shapes or dtypes do not fit."""


class NotDifferentiable(BadGraph, TypeError):
    """A derivative was asked for that does not exist."""


class UnknownOperator(BadGraph, LookupError):
    """No table has the operator, or the backend has no kernel for it."""


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


class NotFinite(NodeFailed, FloatingPointError):
    """A node's value is NaN or infinite, and its inputs are not."""


class OutOfRange(NodeFailed, IndexError):
    """An id is outside the table, classes or row that it is to be looked up in."""


class TooLarge(GraphError, MemoryError):
    """The plan does not fit in the memory that it was given; nothing was computed, or what was is thrown away."""
