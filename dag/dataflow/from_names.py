"""A graph from names: what people and programs write down in place of calls.

``build`` checks what calls cannot get wrong: names that nothing has, and circles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from typing import Any

from ..errors import BadGraph
from .boundaries import identity
from .tables import FUNCTIONS, SHAPES, unknown
from .tensor import Tensor, apply, brief


def build(tasks: Mapping[str, Sequence[Any]], inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensor of each task of ``{name: (operator, input, ..., {attribute: value})}``, in the order of ``tasks``.

    An operator is a function of this package or a row of its tables; an input is the name of a task or of one of ``inputs``,
    a number or an array, or a list of these; the attributes may be left out.

    >>> import numpy as np
    >>> from dag import dataflow as df
    >>> x = df.input("x", (2, 3), np.float64)
    >>> made = build({"loss": ("sum", "square"), "square": ("multiply", "x", "x")}, {"x": x})
    >>> float(df.evaluate(made["loss"], {x: np.ones((2, 3))}))
    6.0

    Raises:
        UnknownOperator: there is no such operator.
        BadGraph: the tasks run in a circle, an input has no such name, or a name stands for two things.
        BadTensor: shapes or dtypes do not fit.
    """
    made = _named_inputs(tasks, inputs)
    sources = {name: _sources(name, task, tasks, inputs) for name, task in tasks.items()}
    try:
        order = tuple(TopologicalSorter(sources).static_order())
    except CycleError as error:
        raise BadGraph(f"the nodes run in a circle: {' -> '.join(error.args[1])}") from None
    for name in order:
        if name in tasks:
            made[name] = _made(name, tasks[name], made)
    return {name: made[name] for name in tasks}


def _named_inputs(tasks: Mapping[str, Any], inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    holders: dict[str, Tensor] = {}
    for name, tensor in inputs.items():
        if not isinstance(tensor, Tensor):
            raise BadGraph(f"the input {name!r} must be a tensor, got {brief(tensor)}")
        if name in tasks:
            raise BadGraph(f"the name {name!r} stands for an input and for a task; give each its own")
        if holders.setdefault(tensor.name, tensor) is not tensor or (
            tensor.name in tasks and tensor.name not in inputs
        ):
            raise BadGraph(f"two nodes have the name {tensor.name!r}; give each its own")
    return dict(inputs)


def _sources(name: str, task: Any, tasks: Mapping[str, Any], inputs: Mapping[str, Tensor]) -> dict[str, None]:
    if isinstance(task, str) or not isinstance(task, Sequence) or not task or not isinstance(task[0], str):
        raise BadGraph(
            f"the task {name!r} must be (operator, input, ..., {{attributes}}), got {brief(task, 80)}"
        )
    if task[0] not in FUNCTIONS and task[0] not in SHAPES:
        raise unknown(task[0], sorted({*FUNCTIONS, *SHAPES}))
    given, _ = _split(task)
    found = dict.fromkeys(_names(given))
    for source in found:
        if source not in tasks and source not in inputs:
            raise BadGraph(f"the task {name!r} needs {source!r}, which is no task and no input")
    return found


def _split(task: Sequence[Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    return (task[1:-1], task[-1]) if isinstance(task[-1], Mapping) else (task[1:], {})


def _names(given: Sequence[Any]) -> list[str]:
    names = []
    for each in given:
        if isinstance(each, str):
            names.append(each)
        elif isinstance(each, (list, tuple)):
            names += [inner for inner in each if isinstance(inner, str)]
    return names


def _made(name: str, task: Sequence[Any], made: Mapping[str, Tensor]) -> Tensor:
    def value(each: Any) -> Any:
        if isinstance(each, (list, tuple)):
            return [value(inner) for inner in each]
        return made[each] if isinstance(each, str) else each

    given, attributes = _split(task)
    values = [value(each) for each in given]
    kind = task[0]
    try:
        result = (
            FUNCTIONS[kind](*values, **attributes)
            if kind in FUNCTIONS
            else apply(kind, *values, **attributes)
        )
    except TypeError as error:
        raise BadGraph(f"the task {name!r}: {kind} does not take what it was given: {error}") from None
    if not isinstance(result, Tensor):
        raise BadGraph(f"the task {name!r}: {kind} makes {type(result).__name__}, not one tensor")
    fresh = identity(result) if any(result is each for each in made.values()) else result
    return replace(fresh, name=name)
