# SPDX-License-Identifier: Apache-2.0
"""Spreads independent work over the cores of this machine, or over the workers of a Dask cluster."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from typing import TypeVar

from testbed.errors import InputError

_CONNECT_TIMEOUT_S = 10
"""Timeout for a Dask scheduler, and for its first worker."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def spread(
    work: Callable[[_Item], _Result],
    items: Sequence[_Item],
    until_done: ExitStack,
    *,
    jobs: int | None = None,
    scheduler: str | None = None,
) -> Iterator[tuple[int, _Result]]:
    """What `work` gives for each item, with the item's place, in order of completion.

    `jobs`: processes on this machine, as many as it has cores unless given; `scheduler`: the address of a Dask
    scheduler, whose workers have this package, instead. `until_done` closes the connection to it. Raises InputError if
    the scheduler cannot be used, and what `work` raises.
    """
    numbered = partial(_numbered, work)
    if scheduler is None:
        return _by_processes(numbered, items, jobs)
    return _by_cluster(numbered, items, scheduler, until_done)


def _numbered(work: Callable[[_Item], _Result], place: int, item: _Item) -> tuple[int, _Result]:
    return place, work(item)


def _by_processes(
    work: Callable[[int, _Item], tuple[int, _Result]], items: Sequence[_Item], jobs: int | None
) -> Iterator[tuple[int, _Result]]:
    from joblib import Parallel, delayed

    workers = Parallel(n_jobs=jobs or -1, return_as="generator_unordered")
    found: Iterator[tuple[int, _Result]] = workers(delayed(work)(*entry) for entry in enumerate(items))
    return found


def _by_cluster(
    work: Callable[[int, _Item], tuple[int, _Result]], items: Sequence[_Item], address: str, until_done: ExitStack
) -> Iterator[tuple[int, _Result]]:
    """joblib's Dask back end is not used: with a single worker thread, it runs everything in this process."""
    try:
        from distributed import Client, as_completed
    except ImportError as error:
        raise InputError(
            "--scheduler needs the package distributed, which is not installed; pip install 'paralet[dask]' brings it"
        ) from error
    try:
        client = until_done.enter_context(Client(address, timeout=_CONNECT_TIMEOUT_S))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"no Dask scheduler answers at {address}") from error
    try:
        client.wait_for_workers(1, timeout=_CONNECT_TIMEOUT_S)
    except TimeoutError as error:
        raise InputError(
            f"the Dask scheduler at {address} has no workers; start some: dask worker {address}"
        ) from error
    for worker, paralet in client.run(find_spec, "testbed").items():
        if paralet is None:  # Dask would retry its points again and again
            raise InputError(f"the Dask worker {worker} has no paralet; install it there")
    futures = client.map(work, range(len(items)), items, pure=False)
    return (found for _, found in as_completed(futures, with_results=True))
