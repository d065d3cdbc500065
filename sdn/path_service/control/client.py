# SPDX-License-Identifier: Apache-2.0
"""A running path service, for controllers and scripts: its operator's socket as a Python object.

```python
from sdn.path_service.control.client import Operator

operator = Operator("/etc/paralet/token")
answer = operator.drain("spine2", dry_run=True)
if not answer.effects.without_path:
    operator.drain("spine2", for_s=3600)
```
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from sdn.path_service.admin import (
    Drain,
    Flows,
    LinkChange,
    ListChanges,
    Paths,
    Pin,
    Promote,
    Reload,
    Request,
    Status,
    Undo,
    Undrain,
    Unpin,
    WhatIf,
    admin_socket,
    ask,
)
from sdn.path_service.control.answers import Changed, Changes, ControlState, Effects, Reloaded
from sdn.path_service.token import read_token

_Answer = TypeVar("_Answer")


class Operator:
    """Asks the path service that has this token file. Each method sends one request.

    All raise `sdn.path_service.admin.AdminError` when the service refuses or does not answer, and
    `sdn.path_service.token.TokenError`. Links and switches are named as in `sdn.path_service.links`, times are in
    seconds.
    """

    def __init__(self, token_file: Path | str) -> None:
        self._token_file = Path(token_file)

    def status(self) -> dict[str, Any]:
        """Figures of the whole service."""
        return self._ask(Status(self._token))

    def control(self) -> ControlState:
        """Drains and pins that hold, and how far drained links are empty."""
        return msgspec.convert(self.status()["control"], ControlState)

    def flows(self, most: int = 1000) -> dict[str, Any]:
        """The oldest elephants with their paths: `flows`, and the service's time `now_s`."""
        return self._ask(Flows(self._token, most))

    def paths(self) -> dict[str, Any]:
        """All links between switches with their elephants: `links`."""
        return self._ask(Paths(self._token))

    def link(self, link: str, up: bool = False) -> dict[str, Any]:
        """Tells that links have gone down, or have come back."""
        return self._ask(LinkChange(self._token, link, up))

    def drain(self, what: str, *, for_s: float | None = None, dry_run: bool = False) -> Changed:
        """Has elephants leave and avoid links or a switch."""
        return self._answer(Drain(self._token, what, for_s, dry_run), Changed)

    def undrain(self, what: str, *, dry_run: bool = False) -> Changed:
        """Ends a drain."""
        return self._answer(Undrain(self._token, what, dry_run), Changed)

    def pin(
        self, src: str, dst: str, via: Sequence[str], *, for_s: float | None = None, dry_run: bool = False
    ) -> Changed:
        """Has elephants from one host to another take paths with these links or switches."""
        return self._answer(Pin(self._token, src, dst, tuple(via), for_s, dry_run), Changed)

    def unpin(self, src: str, dst: str, *, dry_run: bool = False) -> Changed:
        """Ends a pin."""
        return self._answer(Unpin(self._token, src, dst, dry_run), Changed)

    def undo(self, change: int, *, dry_run: bool = False) -> Changed:
        """Changes back what a change has changed."""
        return self._answer(Undo(self._token, change, dry_run), Changed)

    def what_if(self, without: Sequence[str]) -> Effects:
        """What would happen without these links or switches."""
        return self._answer(WhatIf(self._token, tuple(without)), Effects)

    def changes(self, after: int = 0, most: int = 1000) -> Changes:
        """The first `most` changes after this number."""
        return self._answer(ListChanges(self._token, after, most), Changes)

    def reload(self) -> Reloaded:
        """Has the service read its topology and token anew."""
        return self._answer(Reload(self._token), Reloaded)

    def promote(self) -> dict[str, Any]:
        """Has this one of two services lead, though it cannot know that the other one does not."""
        return self._ask(Promote(self._token))

    @property
    def _token(self) -> str:
        return read_token(self._token_file)

    def _ask(self, request: Request) -> dict[str, Any]:
        return ask(admin_socket(self._token_file), request)

    def _answer(self, request: Request, answer: type[_Answer]) -> _Answer:
        return msgspec.convert(self._ask(request), answer)
