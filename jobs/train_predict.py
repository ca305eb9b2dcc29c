"""What saved weights are for: the classes of rows that they have not seen."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dag import dataflow as df
from jobs.train_data import Scaling
from jobs.train_models import Mlp, model_from
from jobs.train_weights import load
from mapreduce.errors import BadInput, BadJob


def predict(path: str, inputs: npt.ArrayLike, *, backend: str = "numpy") -> list[str]:
    """Return the class of each row by the weights in a file that ``mr train mlp ... --save`` has made.

    ``inputs`` has the shape (rows, features), the columns in the order of ``features`` in the file.

    Raises:
        BadInput: the rows have another number of columns, or numbers that are not finite or too far out for the model; or the
            file is damaged.
        BadJob: the weights are of another model.
        MissingInput: there is no such file.
    """
    saved = load(path)
    model = model_from(saved.about["model"])
    if not isinstance(model, Mlp):
        raise BadJob(f"{path} has a {model.name}; classes of rows are predicted by an mlp")
    try:
        rows = np.asarray(inputs, np.float64)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{path} is for rows of numbers: {error}") from None
    if rows.ndim != 2 or rows.shape[1] != model.features:
        raise BadInput(f"{path} is for rows of {model.features} numbers, got the shape {rows.shape}")
    dtype = saved.about["settings"]["dtype"]
    scaling = Scaling(shift=saved.array("scaling.shift"), scale=saved.array("scaling.scale"))
    like = model.start(np.random.default_rng(0), dtype)
    params, given = df.inputs_like(like, "params."), model.inputs(len(rows), dtype)
    scores = model.scores(params, given)
    program = df.Program((df.argmax(scores, axis=-1), df.isfinite(scores)), (params, given), backend=backend)
    with np.errstate(all="ignore"):  # what is not finite is refused below
        chosen, finite = map(np.asarray, program(saved.tree("params.", like), scaling.of(rows, dtype)))
    wrong = np.flatnonzero(~(finite.all(axis=-1) & np.isfinite(rows).all(axis=-1)))
    if wrong.size:
        raise BadInput(
            f"{path}: row {wrong[0]} of those given, counted from 0, has a number that is not finite, or too far from those "
            f"learned from to compute with: {rows[wrong[0]].tolist()!r:.80}"
        )
    return [saved.about["classes"][at] for at in chosen.tolist()]
