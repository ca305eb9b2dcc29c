"""Columns of encoded keys and values, for whole lists at once.

A batch of records has RECORD_SCHEMA.  ``original`` holds the pickled key where the bytes of ``key`` alone would give back
another type (``1.0``, ``True``, ``-0.0``, subclasses).  A value is a tag and the plain value for int, float, str,
bytes and None, a pickle for everything else.  docs/formats.md shows the bytes.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa

from mapreduce.errors import BadValue
from mapreduce.keys import decode_key, encode_with_original
from mapreduce.meter import timing
from mapreduce.words import byte_ranges

Pair = tuple[Any, Any]

RECORD_SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("original", pa.binary())])

_EXACT = 1 << 53  # integers up to here are doubles
_SIGN = 1 << 63
_NUMBER, _BYTES, _STR = 0x04, 0x10, 0x11  # tags of mapreduce.keys

# Values.  A pickle of protocol 5 starts with 0x80, so the other first bytes are free.
_VALUE_TAGS = {int: 0x69, float: 0x66, str: 0x73, bytes: 0x62, type(None): 0x6E}


def encode_value(value: object) -> bytes:
    """Return the bytes of any value that pickles."""
    kind: Any = type(value)
    plain: Any = value
    if kind is int and -_SIGN <= plain < _SIGN:
        return b"i" + int.to_bytes(plain, 8, "little", signed=True)
    if kind is str:
        return b"s" + str.encode(plain, "utf-8", "surrogatepass")
    if kind is float:
        return b"f" + struct.pack("<d", value)
    if kind is bytes:
        return b"b" + bytes(plain)
    if value is None:
        return b"n"
    try:
        return pickle.dumps(value, 5)
    except (pickle.PicklingError, AttributeError):
        # An object of a class from the job's own file, which has no module on a worker: the class goes along.
        import cloudpickle

        return cast(bytes, cloudpickle.dumps(value, protocol=5))


def decode_value(encoded: bytes) -> Any:
    """Return the value of ``encoded``."""
    tag = encoded[0]
    if tag == 0x80:
        return pickle.loads(encoded)
    if tag == 0x69:
        return int.from_bytes(encoded[1:], "little", signed=True)
    if tag == 0x73:
        return encoded[1:].decode("utf-8", "surrogatepass")
    if tag == 0x66:
        return struct.unpack("<d", encoded[1:])[0]
    return encoded[1:] if tag == 0x62 else None


def _fixed(columns: Sequence[Any], width: int, rows: int) -> pa.Array:
    """Return a binary array whose values all have ``width`` bytes, filled by ``columns`` of uint8 blocks in turn."""
    block = np.empty((rows, width), np.uint8)
    at = 0
    for column in columns:
        size = column.shape[-1]
        block[:, at : at + size] = column
        at += size
    offsets = (np.arange(rows + 1, dtype=np.int64) * width).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(block)])


def _tagged(tag: bytes, texts: pa.Array) -> pa.Array:
    """Return ``texts`` with ``tag`` before each, as binary."""
    starts, lengths, data = byte_ranges(texts)
    rows = len(texts)
    ends = np.cumsum(lengths + 1)
    out = np.empty(int(ends[-1]) if rows else 0, np.uint8)
    heads = ends - lengths - 1
    rest = np.ones(len(out), np.bool_)
    rest[heads] = False
    out[heads] = tag[0]
    if rows:
        out[rest] = data[int(starts[0]) : int(starts[-1] + lengths[-1])]
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(out)])


def _number_keys(values: Any) -> pa.Array:
    bits = (values + 0.0).view(np.uint64)
    ordered = np.where(bits & np.uint64(_SIGN), ~bits, bits | np.uint64(_SIGN))
    raw = ordered.astype(">u8").view(np.uint8).reshape(-1, 8)
    tag, none_left = np.array([_NUMBER], np.uint8), np.array([0], np.uint8)
    return _fixed([tag, raw, none_left], 10, len(values))


def encode_keys(keys: Sequence[object]) -> tuple[pa.Array, pa.Array]:
    """Return the columns ``key`` and ``original`` of ``keys``; text and small integers without a loop."""
    kinds = set(map(type, keys))
    if len(kinds) == 1:
        (kind,) = kinds
        if kind is str:
            try:
                return _tagged(b"\x11", pa.array(keys, pa.string())), pa.nulls(len(keys), pa.binary())
            except (UnicodeEncodeError, pa.ArrowInvalid):
                pass  # lone surrogates
        elif kind is int:
            try:
                exact = np.array(keys, np.int64)
            except OverflowError:
                pass
            else:
                if len(exact) and exact.min() >= -_EXACT and exact.max() <= _EXACT:
                    return _number_keys(exact.astype(np.float64)), pa.nulls(len(keys), pa.binary())
        elif kind is bytes:
            return pa.array([b"\x10" + key for key in keys], pa.binary()), pa.nulls(len(keys), pa.binary())  # type: ignore[operator]
    both = [encode_with_original(key) for key in keys]
    return pa.array([pair[0] for pair in both], pa.binary()), pa.array(
        [pair[1] for pair in both], pa.binary()
    )


def encode_values(values: Sequence[object]) -> pa.Array:
    """Return the column ``value`` of ``values``; uniform int, float or text without a loop."""
    kinds = set(map(type, values))
    if len(kinds) == 1:
        (kind,) = kinds
        if kind is int or kind is float:
            try:
                raw = np.array(values, np.int64 if kind is int else np.float64).astype(
                    "<i8" if kind is int else "<f8"
                )
                tag = np.array([_VALUE_TAGS[kind]], np.uint8)
                return _fixed([tag, raw.view(np.uint8).reshape(-1, 8)], 9, len(values))
            except OverflowError:
                pass
        elif kind is str:
            try:
                return _tagged(b"s", pa.array(values, pa.string()))
            except (UnicodeEncodeError, pa.ArrowInvalid):
                pass
    return pa.array([encode_value(value) for value in values], pa.binary())


def to_batch(pairs: Sequence[Pair]) -> pa.RecordBatch:
    """Return ``pairs`` as a batch of RECORD_SCHEMA, in their order.

    Raises:
        BadKey: a key's type has no place in the order of keys.
        BadValue: a value cannot be pickled.
    """
    with timing("serialise"):
        keys, originals = encode_keys([pair[0] for pair in pairs])
        try:
            values = encode_values([pair[1] for pair in pairs])
        except Exception:
            for key, value in pairs:
                _check_value(key, value)
            raise
        return pa.record_batch([keys, values, originals], schema=RECORD_SCHEMA)


def _check_value(key: Any, value: Any) -> None:
    try:
        encode_value(value)
    except Exception as error:
        raise BadValue(
            f"the value of key {key!r} is a {type(value).__name__} that cannot be pickled ({error}); "
            "yield plain values, such as a list in place of a generator"
        ) from None


def decode_keys(batch: pa.RecordBatch) -> list[Any]:
    """Return the keys of a batch of records, as they were given."""
    keys = decode_uniform(batch.column("key"), key=True)
    if keys is None:
        keys = [decode_key(key) for key in batch.column("key").to_pylist()]
    originals = batch.column("original")
    if originals.null_count < len(originals):
        for row, original in enumerate(originals.to_pylist()):
            if original is not None:
                keys[row] = pickle.loads(original)
    return keys


def decode_values(column: pa.Array) -> list[Any]:
    """Return the values of a column ``value``."""
    values = decode_uniform(column)
    return [decode_value(value) for value in column.to_pylist()] if values is None else values


def decode_uniform(column: pa.Array, *, key: bool = False) -> list[Any] | None:
    """Decode a column whose rows all have one simple type at once; None when they do not."""
    starts, lengths, data = byte_ranges(column)
    rows = len(column)
    if rows == 0:
        return []
    tags = data[starts]
    tag = int(tags[0])
    if not (tags == tag).all():
        return None
    if tag == (_STR if key else 0x73):
        if not lengths.max() < 1 << 20:
            return None
        try:
            texts = column.cast(pa.string()).to_pylist()
        except pa.ArrowInvalid:
            return None
        return [text[1:] for text in texts]
    if tag == (_BYTES if key else 0x62):
        return [raw[1:] for raw in column.to_pylist()]
    width = 10 if key else 9
    if tag not in ((_NUMBER,) if key else (0x69, 0x66)) or not (lengths == width).all():
        return None
    block = data[int(starts[0]) : int(starts[0]) + rows * width].reshape(rows, width)
    raw = np.ascontiguousarray(block[:, 1:9])
    if not key:
        return list(raw.view("<i8" if tag == 0x69 else "<f8").ravel().tolist())
    bits = raw.view(">u8").ravel().astype(np.uint64)
    sign = np.uint64(_SIGN)
    floats = np.where(bits & sign, bits ^ sign, ~bits).view(np.float64)
    if (np.abs(floats) <= _EXACT).all() and (floats == np.floor(floats)).all():
        return list(floats.astype(np.int64).tolist())
    return None


def to_pairs(batch: pa.RecordBatch) -> list[Pair]:
    """Return the records of a batch, in their order, with the types they were given with."""
    with timing("serialise"):
        return list(zip(decode_keys(batch), decode_values(batch.column("value")), strict=True))
