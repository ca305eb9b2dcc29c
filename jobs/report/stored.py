"""A comparison as JSON, and its JSON Schema: both follow from the classes in ``model``, so neither can fall behind.

``schema.json`` beside this file is what ``json_schema`` returns.  A file of another schema version is refused; fields that
nobody knows are refused as well, since a number that is silently dropped is worse than an error.
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from mapreduce.errors import BadInput

from .model import ENGINES, PARTS, SCHEMA_VERSION, BadComparison, Comparison


def to_json(comparison: Comparison) -> str:
    """Return the comparison as JSON, one line per run, stage, attempt and so on."""
    return _written(_plain(comparison), 0) + "\n"


def from_json(text: str | bytes, name: str = "the comparison") -> Comparison:
    """Return the comparison that ``to_json`` wrote; ``name`` stands in messages.

    Raises:
        BadInput: the text is no comparison, or one of another schema version.
    """
    try:
        found = json.loads(text, parse_constant=_refuse_constant)
    except ValueError as error:
        raise BadInput(f"{name}: this is no JSON: {error}") from error
    version = found.get("schema_version") if isinstance(found, dict) else None
    if version != SCHEMA_VERSION:
        raise BadInput(
            f"{name}: schema version {version!r}, this mr reads version {SCHEMA_VERSION};"
            " run mr compare again with --json, or use the mr that wrote it"
        )
    try:
        made = _made(Comparison, found, "comparison")
    except BadComparison as error:
        raise BadInput(f"{name}: {error}") from error
    assert isinstance(made, Comparison)
    return made


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of what ``to_json`` writes."""
    definitions: dict[str, Any] = {}
    top = _schema_of(Comparison, definitions)
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What mr compare found",
        **top,
        "$defs": definitions,
    }
    definitions["Comparison"]["properties"]["schema_version"] = {"const": SCHEMA_VERSION}
    definitions["Engine"]["properties"]["engine"] = {"enum": list(ENGINES)}
    definitions["Engine"]["properties"]["breakdown"]["propertyNames"] = {"enum": list(PARTS)}
    return schema


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is no number that a report can show")


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _written(value: Any, depth: int) -> str:
    """Spread the upper levels over lines, so that a difference of two files can be read."""
    nested = isinstance(value, dict | list) and any(
        isinstance(item, dict | list) for item in (value.values() if isinstance(value, dict) else value)
    )
    if not nested or depth > 6:
        return json.dumps(value, allow_nan=False)
    pad = " " * (depth + 1)
    if isinstance(value, dict):
        body = [f"{pad}{json.dumps(key)}: {_written(item, depth + 1)}" for key, item in value.items()]
        return "{\n" + ",\n".join(body) + "\n" + " " * depth + "}"
    return "[\n" + ",\n".join(pad + _written(item, depth + 1) for item in value) + "\n" + " " * depth + "]"


def _made(kind: Any, value: Any, path: str) -> Any:
    """Return ``value``, as JSON has it, as an instance of ``kind``."""
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _made_object(kind, value, path)
    if origin is tuple:
        if not isinstance(value, list):
            raise BadComparison(f"{path} must be a list, got {value!r:.40}")
        return tuple(_made(arguments[0], item, f"{path}[{at}]") for at, item in enumerate(value))
    if origin is not None and _is_mapping(origin):
        if not isinstance(value, dict):
            raise BadComparison(f"{path} must be an object, got {value!r:.40}")
        return {key: _made(arguments[1], item, f"{path}.{key}") for key, item in value.items()}
    if origin in (Union, types.UnionType):
        return None if value is None else _made(arguments[0], value, path)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise BadComparison(f"{path} must be {_WORDS[kind]}, got {value!r:.40}")
    return value


_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def _is_mapping(origin: Any) -> bool:
    """Return whether an annotation's origin is a mapping."""
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _made_object(kind: Any, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise BadComparison(f"{path} must be an object, got {value!r:.40}")
    known = {each.name: each for each in fields(kind)}
    if unknown := sorted(set(value) - set(known)):
        raise BadComparison(f"{path} has no field {unknown[0]!r}")
    if missing := sorted(name for name, each in known.items() if name not in value and _is_required(each)):
        raise BadComparison(f"{path} lacks the field {missing[0]!r}")
    hints = get_type_hints(kind)
    return kind(**{name: _made(hints[name], item, f"{path}.{name}") for name, item in value.items()})


def _is_required(each: Field[Any]) -> bool:
    return each.default is MISSING and each.default_factory is MISSING


def _schema_of(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        name = kind.__name__  # type: ignore[union-attr]
        if name not in definitions:
            definitions[name] = {}
            hints = get_type_hints(kind)
            definitions[name] = {
                "type": "object",
                "additionalProperties": False,
                "required": [each.name for each in fields(kind)],
                "properties": {each.name: _schema_of(hints[each.name], definitions) for each in fields(kind)},
            }
        return {"$ref": f"#/$defs/{name}"}
    if origin is tuple:
        return {"type": "array", "items": _schema_of(arguments[0], definitions)}
    if origin is not None and _is_mapping(origin):
        return {"type": "object", "additionalProperties": _schema_of(arguments[1], definitions)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema_of(arguments[0], definitions), {"type": "null"}]}
    return {"type": {int: "integer", float: "number", str: "string", bool: "boolean"}[kind]}
