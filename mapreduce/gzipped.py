"""Gzip files as gzip(1) reads them: all members one after the other, zero bytes behind the last one ignored.

Tapes and block devices pad with zeros, which Arrow's stream takes for a damaged member.  Everything else
behind a member, a wrong checksum and an end in the middle of a member are errors.
"""

from __future__ import annotations

import io
import zlib
from typing import Any

GZIP_WINDOW = 31
"""``zlib``'s name for a gzip header and trailer around the largest window."""
READ_BYTES = 1 << 18


class GzipReader(io.RawIOBase):
    """The uncompressed bytes of a gzip file; ``raw`` is closed with it.

    Reading raises ``OSError`` for data that is damaged or cut short.
    """

    def __init__(self, raw: io.RawIOBase) -> None:
        super().__init__()
        self._raw = raw
        self._member = zlib.decompressobj(GZIP_WINDOW)
        self._begun = False  # bytes of the current member have been seen
        self._packed = b""  # read and not yet decompressed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` and return how many bytes came; fewer than it holds only at the end."""
        view = memoryview(buffer).cast("B")
        filled = 0
        while filled < len(view):
            if self._member.eof:
                self._packed = self._member.unused_data
                self._member, self._begun = zlib.decompressobj(GZIP_WINDOW), False
                self._skip_zeros()
            elif not self._packed:
                self._packed = self._raw.read(READ_BYTES) or b""
            if not self._packed:
                if self._begun:
                    raise OSError("the data is cut short")
                break
            self._begun = True
            try:
                data = self._member.decompress(self._packed, len(view) - filled)
            except zlib.error as error:
                raise OSError(f"the data is damaged: {error}") from error
            self._packed = self._member.unconsumed_tail
            view[filled : filled + len(data)] = data
            filled += len(data)
        return filled

    def _skip_zeros(self) -> None:
        """Move to the next member, or to the end."""
        while True:
            if self._packed:
                self._packed = self._packed.lstrip(b"\0")
            if self._packed:
                return
            self._packed = self._raw.read(READ_BYTES) or b""
            if not self._packed:
                return

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()
