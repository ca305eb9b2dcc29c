"""Collectives in the background: one thread does them in the order of the calls."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class Pending(Generic[Value]):
    """A collective that has been called and may not have ended; until it has, its arrays are not to be touched."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._value: Value | None = None
        self._error: BaseException | None = None
        self.waited = False

    def wait(self) -> Value:
        """Return the result once it is there; raises what the collective raised."""
        self._ended.wait()
        self.waited = True
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def done(self) -> bool:
        """Return whether ``wait`` would return, or raise, at once."""
        return self._ended.is_set()

    def _do(self, work: Callable[[], Value]) -> None:
        try:
            self._value = work()
        except BaseException as error:
            self._error = error
        self._ended.set()


class Background:
    """The thread; it starts with the first call."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Pending[Any]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: Pending[Any] | None = None
        self._failed: Pending[Any] | None = None

    @property
    def idle(self) -> bool:
        """True if all that was called has ended."""
        return self._last is None or self._last.done()

    def call(self, work: Callable[[], Value]) -> Pending[Value]:
        """Have ``work`` done after all that was called before."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True, name="collectives")
            self._thread.start()
        self._last = pending = Pending[Value]()
        self._calls.put((work, pending))
        return pending

    def finish(self) -> None:
        """Wait for all; raises the first error that nobody has waited for."""
        if self._last is not None:
            self._last._ended.wait()
        if self._failed is not None and not self._failed.waited:
            self._failed.wait()

    def _work(self) -> None:
        while True:
            work, pending = self._calls.get()
            pending._do(work)
            if pending._error is not None and self._failed is None:
                self._failed = pending
