"""Programs on their way to workers: functions by value, with the names of their source files.

cloudpickle leaves the file name out of a function's code, for the same bytes wherever it was defined.
A traceback then shows neither file nor line of the user's code; here the name is put back.
"""

from __future__ import annotations

import io
import types
from typing import Any

import cloudpickle


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.CodeType):
            make, arguments = self.dispatch_table[types.CodeType](obj)
            left_out = "<dynamic-code>"
            return make, tuple(obj.co_filename if a == left_out else a for a in arguments)
        return super().reducer_override(obj)


def pickle_by_value(value: Any) -> bytes:
    """Return the pickle of a value and of the functions in it; ``pickle.loads`` reads it."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()
