# SPDX-License-Identifier: Apache-2.0
"""Results of slow functions, computed ahead on all cores."""

from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack
from functools import update_wrapper
from inspect import signature
from typing import Any, Generic, ParamSpec, TypeVar

from testbed.progress import Steps
from testbed.simulate.spread import spread

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Remembered(Generic[_P, _R]):
    """A decorator for a function of a module whose result depends on its arguments: computes each result once.

    `ahead` computes several in parallel, so a function that measures how long something takes must measure processor
    time: wall time depends on what runs beside it.
    """

    __qualname__: str

    def __init__(self, function: Callable[_P, _R]) -> None:
        update_wrapper(self, function)
        self._function = function
        self._signature = signature(function)
        self._found: dict[Hashable, _R] = {}

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        key = self._key(*args, **kwargs)
        if key not in self._found:
            self._found[key] = self._function(*args, **kwargs)
        return self._found[key]

    def remember(self, result: _R, *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Set the result of these arguments."""
        self._found[self._key(*args, **kwargs)] = result

    def _key(self, *args: _P.args, **kwargs: _P.kwargs) -> Hashable:
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return tuple(bound.arguments.items())

    def __reduce__(self) -> str:
        return self.__qualname__  # by name, as functions are


Case = tuple[Remembered[Any, Any], tuple[Any, ...]]
"""A function and its arguments, one or more."""


def ahead(cases: Sequence[Case]) -> None:
    """Compute these on all cores, in this order, and show progress."""
    with ExitStack() as until_done, Steps(len(cases), every_s=5.0) as steps:
        steps.now("simulating")
        for place, result in spread(_compute, cases, until_done):
            function, args = cases[place]
            function.remember(result, *args)
            steps.advance()
            steps.now(f"{function.__module__.rpartition('.')[2]}: {args[0]}")


def _compute(case: Case) -> Any:
    function, args = case
    return function(*args)
