"""Train a linear classifier by gradient descent: logistic regression for two classes, softmax for more.

``mr run gradient points.csv -o weights -p iterations=50 -p l2=0.01 --output-format csv``

``label`` names the column of classes (``label`` by default) and ``features=a,b`` the numeric columns to learn from (all
others by default).  The result has a row per class and feature: ``class``, ``feature``, ``weight``; with two
classes only for the second one in order.  The intercept is the feature ``(intercept)``.  Weights belong to the columns as
they are in the file, whatever was scaled on the way.  ``show=losses`` gives ``iteration`` and ``loss`` in their place.

What is minimised is the mean loss of a row plus ``l2`` / 2 times the squares of all weights but the intercepts
(scikit-learn's C is 1 / (l2 * rows)).  With ``standardise`` (the default) the weights in the penalty are those of columns that
are divided by their standard deviation.

The first stage looks at every row once: means and covariances of the features, the classes, and cells that are no
numbers, which are refused.  Then each iteration is a stage: a map adds up the gradient over each block of rows, ``fold`` adds
those in a tree, neighbours first, and the reduce takes a step.  The points are the same dataset in all of them, so an engine
with memory reads them once.  ``tolerance`` ends the iterations when no part of the gradient is larger.

``rate`` is by default 1 / a bound on the curvature, with which full steps never overshoot; ``momentum`` is Nesterov's,
growing until a step goes uphill, or a constant, 0 for none.  ``batch=ROWS`` has each iteration see about so
many rows: in each epoch a hash of its number puts every row into one mini-batch.  Then there is no momentum unless
given, and the rate falls with the square root of the epoch.

``form`` says where the gradient of a block of rows comes from: ``formula`` is written by hand, ``dataflow`` is the derivative of
a graph of the loss (``jobs/dataflow_gradient.py``).  They agree but for the last digits.

Sums of floats depend on how they are grouped.  The groups here are blocks of so many rows, counted from the beginning of a
split; then a tree over the blocks, and one over the splits.  Neither engine has a say in that, so both give the same bytes.
Another ``--split-size`` or number of workers makes other splits, and other last digits.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from mapreduce import BadJob, Dataset, Stage, job

MODELS = ("auto", "logistic", "softmax")
SHOWN = ("weights", "losses")
FORMS = ("formula", "dataflow")


@job
def gradient(
    points: Dataset,
    *,
    label: str = "label",
    features: str | None = None,
    model: str = "auto",
    iterations: int = 20,
    rate: float | None = None,
    l2: float = 0.0,
    momentum: float | None = None,
    batch: int | None = None,
    standardise: bool = True,
    tolerance: float | None = None,
    seed: int = 0,
    show: str = "weights",
    form: str = "formula",
) -> Dataset | Generator[Dataset, list[Any], Dataset]:
    """Train logistic or softmax regression on the numeric columns of a table (label=column iterations=N l2=...)."""
    from jobs.descent import (
        ITERATE_SCHEMA,
        LOSSES_SCHEMA,
        PARTIAL_SCHEMA,
        WEIGHTS_SCHEMA,
        Descent,
        add_partials,
    )
    from jobs.labelled_points import LabelledPoints

    for name, value, least in (
        ("iterations", iterations, 1),
        ("batch", batch, 1),
        ("l2", l2, 0),
        ("tolerance", tolerance, 0),
    ):
        if value is not None and not value >= least:
            raise BadJob(f"job 'gradient': {name} must be >= {least}, got {value}")
    if rate is not None and not rate > 0:
        raise BadJob(f"job 'gradient': rate must be > 0, got {rate}")
    if momentum is not None and not 0 <= momentum < 1:
        raise BadJob(f"job 'gradient': momentum must be in [0, 1), got {momentum}")
    for name, text, known in (("model", model, MODELS), ("show", show, SHOWN), ("form", form, FORMS)):
        if text not in known:
            raise BadJob(f"job 'gradient': {name} must be {', '.join(known)}, got {text!r}")
    names = tuple(name.strip() for name in features.split(",") if name.strip()) if features else ()
    table = LabelledPoints(label=label, features=names, two_classes=model == "logistic")
    descent = Descent(
        label=label, softmax=model == "softmax", rate=rate, l2=l2, momentum=momentum, batch=batch,
        standardise=standardise, seed=seed, form=form,
    )  # fmt: skip
    summary = Stage(
        name="summary",
        map_batch=table.summarise,
        setup=table.start,
        schema=table.checked,
        keys=["split"],
        reduce_batch=table.merge_summaries,
        partitions=1,
    )(points)

    def next_iterate(before: Dataset | None) -> Dataset:
        return Stage(
            name="iteration",
            map_batch=descent.add_up,
            map_end=descent.add_block,
            fold=add_partials,
            setup=descent.open,
            schema=PARTIAL_SCHEMA,
            keys=["split"],
            side={"summary": summary} if before is None else {"summary": summary, "iterate": before},
            reduce_batch=descent.update,
            output_schema=ITERATE_SCHEMA,
            partitions=1,
        )(points)

    def result(last: Dataset) -> Dataset:
        if show == "losses":
            return Stage(name="losses", map_batch=descent.show_losses, schema=LOSSES_SCHEMA)(last)
        return Stage(
            name="weights",
            map_batch=descent.show_weights,
            schema=WEIGHTS_SCHEMA,
            side={"summary": summary},
        )(last)

    def until(tolerance: float) -> Generator[Dataset, list[Any], Dataset]:
        last = None
        for _ in range(iterations):
            last = next_iterate(last)
            [row] = yield last
            if row[ITERATE_SCHEMA.get_field_index("slope")] <= tolerance:
                break
        assert last is not None
        return result(last)

    if tolerance is not None:
        return until(tolerance)
    last = None
    for _ in range(iterations):
        last = next_iterate(last)
    assert last is not None
    return result(last)
