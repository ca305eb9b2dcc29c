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
        BadInput: the rows have another number of columns, or the file is damaged.
        BadJob: the weights are of another model.
        MissingInput: there is no such file.
    """
    saved = load(path)
    model = model_from(saved.about["model"])
    if not isinstance(model, Mlp):
        raise BadJob(f"{path} has a {model.name}; classes of rows are predicted by an mlp")
    rows = np.asarray(inputs, np.float64)
    if rows.ndim != 2 or rows.shape[1] != model.features:
        raise BadInput(f"{path} is for rows of {model.features} numbers, got the shape {rows.shape}")
    dtype = saved.about["settings"]["dtype"]
    scaling = Scaling(shift=saved.arrays["scaling.shift"], scale=saved.arrays["scaling.scale"])
    like = model.start(np.random.default_rng(0), dtype)
    params, given = df.inputs_like(like, "params."), model.inputs(len(rows), dtype)
    program = df.Program(df.argmax(model.scores(params, given), axis=-1), (params, given), backend=backend)
    chosen = program(saved.tree("params.", like), scaling.of(rows, dtype))
    return [saved.about["classes"][at] for at in np.asarray(chosen).tolist()]
