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
