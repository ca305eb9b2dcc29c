"""Whether a file is being closed because a ``with`` block raised.

``close()`` is not told. fsspec's ``OpenFile``, ``io.TextIOWrapper``, pyarrow's streams and pandas all close
the file they wrap in their own ``__exit__`` whatever happened, and so would publish half a file.
"""

import dis
import sys

_IN_WITH_EXIT = dis.opmap["WITH_EXCEPT_START"]


def unwinding(known: BaseException | None) -> bool:
    """Return whether some ``with`` block up the stack is being left by an exception other than ``known``.

    ``known`` is the exception in flight when the file was opened: one opened while handling an error, or in
    an ``__exit__``, is closed as usual. Closing inside an ``except`` clause is no unwinding either: the
    frame is then not at the instruction that calls ``__exit__`` with an exception.
    """
    if sys.exc_info()[1] in (None, known):
        return False
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_lasti >= 0 and frame.f_code.co_code[frame.f_lasti] == _IN_WITH_EXIT:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
