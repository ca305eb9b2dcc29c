"""Keys as bytes whose unsigned order is one total order over all supported types.

::

    None < numbers < bytes < str < date < datetime < datetime with a time zone < tuple

Numbers (bool, int of any size, float) are ordered by value, exactly: ``1 == 1.0 == True`` and ``-0.0 == 0`` are one key,
NaN is one key after infinity.  Text sorts by code point, time-zoned moments by their instant, tuples element by
element.  Keys that are equal in Python have equal bytes.  docs/formats.md shows the bytes.
"""

from __future__ import annotations

import datetime
import math
import numbers
import pickle
import struct
from typing import Any

from mapreduce.errors import BadKey

# Key tags.  0x00 ends a tuple, so that a shorter tuple sorts first.
_END = 0x00
_NONE = 0x01
_NEGATIVE_INFINITY = 0x02
_BELOW = 0x03  # integers below the smallest double
_NUMBER = 0x04  # double, then the rest that a double cannot hold
_ABOVE = 0x05  # integers above the largest double
_INFINITY = 0x06
_NAN = 0x07
_BYTES = 0x10
_STR = 0x11
_DATE = 0x20
_DATETIME = 0x21
_MOMENT = 0x22
_TUPLE = 0x30

_LARGEST = int(float.fromhex("0x1.fffffffffffffp+1023"))
_EPOCH = datetime.datetime(1, 1, 1)
_UTC_EPOCH = datetime.datetime(1, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
_SIGN = 1 << 63
_ALL = (1 << 64) - 1
_EXACT = 1 << 53
SUPPORTED = "None, bool, int, float, bytes, str, date, datetime and tuples of these"


def encode_key(key: object) -> bytes:
    """Return the bytes of ``key``; their order is the order of keys.

    >>> encode_key("a") < encode_key("b") < encode_key(("a", 1)) and encode_key(1) == encode_key(1.0)
    True

    Raises:
        BadKey: the type has no place in the order.
    """
    return _encode(key, key)[0]


def encode_with_original(key: object) -> tuple[bytes, bytes | None]:
    """Return the bytes of ``key`` and its pickle where the bytes alone would give back another type."""
    encoded, exact = _encode(key, key)
    return encoded, None if exact else pickle.dumps(key, 5)


def _encode(key: object, whole: object) -> tuple[bytes, bool]:
    """Return the bytes and whether decoding them gives the very same value and type."""
    kind = type(key)
    if kind is str:
        return b"\x11" + key.encode("utf-8", "surrogatepass"), True  # type: ignore[attr-defined]
    if kind is bytes:
        return b"\x10" + key, True  # type: ignore[operator]
    if isinstance(key, str):
        return b"\x11" + str.encode(key, "utf-8", "surrogatepass"), False
    if isinstance(key, bytes):
        return b"\x10" + bytes(key), False
    return _encode_element(key, whole)


def _encode_element(key: object, whole: object) -> tuple[bytes, bool]:
    """Like _encode, but the bytes end by themselves, so that others may follow."""
    kind = type(key)
    if key is None:
        return b"\x01", True
    if isinstance(key, int):
        return _encode_int(int(key)), kind is int
    if isinstance(key, float):
        return _encode_float(float(key), kind is float)
    if isinstance(key, str | bytes):
        encoded, exact = _encode(key, whole)
        return encoded[:1] + encoded[1:].replace(b"\x00", b"\x00\xff") + b"\x00", exact
    if isinstance(key, tuple):
        parts = [b"\x30"]
        exact = kind is tuple
        for element in key:
            part, same = _encode_element(element, whole)
            parts.append(part)
            exact = exact and same
        parts.append(b"\x00")
        return b"".join(parts), exact
    if isinstance(key, datetime.datetime):
        if key.utcoffset() is None:
            ticks = (key.replace(tzinfo=None, fold=0) - _EPOCH) // _MICROSECOND
            return b"\x21" + ticks.to_bytes(
                8, "big"
            ), kind is datetime.datetime and not key.fold and key.tzinfo is None
        ticks = (key - _UTC_EPOCH) // _MICROSECOND + _SIGN  # an offset may lead before year 1
        return b"\x22" + ticks.to_bytes(8, "big"), kind is datetime.datetime and key.tzinfo is datetime.UTC
    if isinstance(key, datetime.date):
        return b"\x20" + key.toordinal().to_bytes(4, "big"), kind is datetime.date
    if isinstance(key, numbers.Integral):  # numpy's integers
        return _encode_int(int(key)), False
    if isinstance(key, numbers.Real) and not isinstance(key, numbers.Rational):  # numpy's small floats
        return _encode_float(float(key), False)
    shown = repr(key)
    where = "" if key is whole else f" inside key {shorten(repr(whole))}"
    raise BadKey(f"a {kind.__name__} cannot be a key: {shorten(shown)}{where}; keys are made of {SUPPORTED}")


def shorten(text: str) -> str:
    """Return at most 80 characters of ``text``."""
    return text if len(text) <= 80 else text[:77] + "..."


def _encode_float(value: float, exact: bool) -> tuple[bytes, bool]:
    if value != value:
        return b"\x07", exact
    if math.isinf(value):
        return (b"\x06" if value > 0 else b"\x02"), exact
    if value.is_integer():  # decodes to an int
        return b"\x04" + _double(value) + b"\x00", False
    return b"\x04" + _double(value) + b"\x00", exact


def _double(value: float) -> bytes:
    """Return eight bytes that sort as ``value`` does."""
    (bits,) = struct.unpack(">Q", struct.pack(">d", value + 0.0))
    return int(bits ^ _ALL if bits & _SIGN else bits | _SIGN).to_bytes(8, "big")


def _encode_int(value: int) -> bytes:
    if -_EXACT <= value <= _EXACT:
        return b"\x04" + _double(float(value)) + b"\x00"
    if value > _LARGEST:
        return b"\x05" + _sized(value)
    if value < -_LARGEST:
        return b"\x03" + bytes(255 - byte for byte in _sized(-value))
    nearest = float(value)
    if nearest > value:
        nearest = math.nextafter(nearest, -math.inf)
    rest = value - int(nearest)
    tail = rest.to_bytes((rest.bit_length() + 7) // 8, "big")
    return b"\x04" + _double(nearest) + bytes([len(tail)]) + tail


def _sized(value: int) -> bytes:
    size = (value.bit_length() + 7) // 8
    return size.to_bytes(8, "big") + value.to_bytes(size, "big")


def decode_key(encoded: bytes) -> Any:
    """Return the key of ``encoded``: numbers with an integral value as int, moments in UTC, everything else as it was."""
    tag = encoded[0]
    if tag == _STR:
        return encoded[1:].decode("utf-8", "surrogatepass")
    if tag == _BYTES:
        return encoded[1:]
    return _decode_element(encoded, 0)[0]


def _decode_element(data: bytes, at: int) -> tuple[Any, int]:
    tag = data[at]
    at += 1
    if tag == _NUMBER:
        bits = int.from_bytes(data[at : at + 8], "big")
        (value,) = struct.unpack(">d", struct.pack(">Q", bits ^ _SIGN if bits & _SIGN else bits ^ _ALL))
        stop = at + 9 + data[at + 8]
        if value.is_integer():
            return int(value) + int.from_bytes(data[at + 9 : stop], "big"), stop
        return value, stop
    if tag in (_STR, _BYTES):
        stop = _end_of_text(data, at)
        raw = data[at:stop].replace(b"\x00\xff", b"\x00")
        return (raw.decode("utf-8", "surrogatepass") if tag == _STR else raw), stop + 1
    if tag == _TUPLE:
        elements = []
        while data[at] != _END:
            element, at = _decode_element(data, at)
            elements.append(element)
        return tuple(elements), at + 1
    if tag == _NONE:
        return None, at
    if tag == _DATETIME:
        return _EPOCH + int.from_bytes(data[at : at + 8], "big") * _MICROSECOND, at + 8
    if tag == _MOMENT:
        ticks = int.from_bytes(data[at : at + 8], "big") - _SIGN
        try:
            return _UTC_EPOCH + ticks * _MICROSECOND, at + 8
        except OverflowError:  # the instant has no year in UTC; ``original`` holds the key
            return _UTC_EPOCH, at + 8
    if tag == _DATE:
        return datetime.date.fromordinal(int.from_bytes(data[at : at + 4], "big")), at + 4
    if tag in (_ABOVE, _BELOW):
        head = data[at : at + 8] if tag == _ABOVE else bytes(255 - byte for byte in data[at : at + 8])
        stop = at + 8 + int.from_bytes(head, "big")
        body = data[at + 8 : stop]
        if tag == _ABOVE:
            return int.from_bytes(body, "big"), stop
        return -int.from_bytes(bytes(255 - byte for byte in body), "big"), stop
    special = {_NAN: math.nan, _INFINITY: math.inf, _NEGATIVE_INFINITY: -math.inf}
    return special[tag], at


def _end_of_text(data: bytes, at: int) -> int:
    """Return the place of the zero byte that ends an element; an escaped zero is followed by 0xff."""
    stop = data.index(b"\x00", at)
    while data[stop + 1 : stop + 2] == b"\xff":
        stop = data.index(b"\x00", stop + 2)
    return stop


def _skip_element(data: bytes, at: int) -> int:
    tag = data[at]
    if tag in (_STR, _BYTES):
        return _end_of_text(data, at + 1) + 1
    if tag == _NUMBER:
        return at + 10 + data[at + 9]
    return _decode_element(data, at)[1]


def prefix_bytes(encoded: bytes, fields: int) -> bytes:
    """Return the bytes of the first ``fields`` elements of an encoded tuple; of another key all its bytes."""
    if encoded[0] != _TUPLE:
        return encoded
    at = 1
    for _ in range(fields):
        if encoded[at] == _END:
            break
        at = _skip_element(encoded, at)
    return encoded[:at]
