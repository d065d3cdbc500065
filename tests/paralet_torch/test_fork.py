# SPDX-License-Identifier: Apache-2.0
"""A forked child gets an error from every call on its parent's groups, and the parent goes on undisturbed."""

from __future__ import annotations

from tests.paralet_torch.world import Ranks

REFUSED = "the group is the parent process's: a forked child destroys it and makes its own"
OF_THE_WORK = "recv of the group: the group is the parent process's: a forked child opens its own"


def test_a_forked_child_gets_an_error_from_every_call(three_ranks: Ranks) -> None:
    heard = three_ranks.run("fork")[0]
    assert heard.pop("status") == "0"
    assert heard.pop("own") == "[1.0, 1.0]"
    of_works = {name: heard.pop(name) for name in ("wait", "is_completed", "is_success", "exception", "result")}
    assert of_works | {"get_future": heard.pop("get_future")} == dict.fromkeys([*of_works, "get_future"], OF_THE_WORK)
    assert heard == dict.fromkeys(heard, REFUSED)
    assert len(heard) == 9


def test_futures_of_the_parent_end_in_a_forked_child(three_ranks: Ranks) -> None:
    heard = three_ranks.run("fork_with_futures")[0]
    assert heard.pop("status") == "0"
    assert heard.pop("of an ended work") == "returned tensor([4., 4., 4.])"
    assert {name for name, said in heard.items() if OF_THE_WORK in said} == {"future", "again", "chained", "all"}, heard


def test_a_future_ends_in_a_child_that_is_forked_while_a_thread_completes_it(three_ranks: Ranks) -> None:
    assert three_ranks.run("fork_beside_a_completion") == [0, 0, 0]


def test_works_that_have_ended_are_let_go(three_ranks: Ranks) -> None:
    three_ranks.run("futures_are_let_go")
