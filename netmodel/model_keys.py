# SPDX-License-Identifier: Apache-2.0
"""The keys that a pydantic model accepts at a place in its data, for suggestions in error messages."""

import inspect
import types
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pydantic


def known_keys(model: type[pydantic.BaseModel], location: Iterable[str | int]) -> list[str]:
    """The keys accepted in the mapping at `location`, a pydantic error location without the key itself. Sorted.

    Where a union allows several models, the keys of all of them. Empty where the location leads to no model.
    """
    candidates: list[Any] = list(_branches(model))
    for segment in location:
        below = [inner for candidate in candidates for inner in _below(candidate, segment)]
        # A segment that is not a key names a branch of a union, by class or by discriminator value.
        candidates = below or [c for c in candidates if _is_called(c, segment)] or candidates
    return sorted({key for candidate in candidates if _is_model(candidate) for key in _fields(candidate)})


def _branches(annotation: Any) -> Iterator[Any]:
    """The alternatives of a type: members of unions, without Annotated and type aliases.

    An abstract model stands for the models below it, as far as their modules are imported.
    """
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _branches(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from _branches(member)
    else:
        yield annotation
        if inspect.isabstract(annotation):
            for below in annotation.__subclasses__():
                yield from _branches(below)


def _below(annotation: Any, segment: str | int) -> Iterator[Any]:
    """The types that a value of type `annotation` may have at `segment`."""
    if _is_model(annotation):
        field = _fields(annotation).get(str(segment))
        if field is not None:
            yield from _branches(field)
        return
    arguments = [argument for argument in get_args(annotation) if argument is not Ellipsis]
    if get_origin(annotation) in (list, tuple, set, frozenset) and isinstance(segment, int):
        for argument in arguments:
            yield from _branches(argument)
    elif get_origin(annotation) is dict and len(arguments) == 2:
        yield from _branches(arguments[1])


def _fields(model: type[pydantic.BaseModel]) -> dict[str, Any]:
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel)


def _is_called(annotation: Any, segment: str | int) -> bool:
    if not _is_model(annotation):
        return False
    return annotation.__name__ == segment or any(
        get_origin(field) is Literal and segment in get_args(field) for field in _fields(annotation).values()
    )
