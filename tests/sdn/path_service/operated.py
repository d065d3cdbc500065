# SPDX-License-Identifier: Apache-2.0
"""One of several path services that share hosts, with its socket for operators and its operator."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from sdn.path_service import admin, admin_server
from sdn.path_service.availability.member import Member
from sdn.path_service.consensus.member import Elected
from sdn.path_service.control.client import Operator
from sdn.path_service.control.control import Control
from sdn.path_service.server import Server
from tests.sdn.path_service.test_server import TIMEOUT_S


class Operated:
    """Its token is in a folder of its own."""

    server: Server
    member: Member | Elected

    def __init__(self, folder: Path, token: str) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        file = folder / "token"
        file.write_text(token)
        file.chmod(0o600)
        self.operator = Operator(file)

    async def take_part(self, control: Control) -> None:
        """From now on `member` takes part in the election, and operators can ask."""
        self.stays = asyncio.create_task(self.member.run())
        bound = admin_server.bind(admin.admin_socket(self.folder / "token"))
        self.close_admin = await admin_server.listen(self.server, None, bound, control, self.member)

    async def close(self) -> None:
        self.stays.cancel()
        await asyncio.gather(self.stays, return_exceptions=True)
        self.close_admin()
        await self.server.close()

    async def ask(self, method: str, *arguments: Any) -> Any:
        return await asyncio.to_thread(getattr(self.operator, method), *arguments)

    async def until(self, **holds: Any) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while any(getattr(self.member.state(), name) != value for name, value in holds.items()):
                await asyncio.sleep(0.01)
