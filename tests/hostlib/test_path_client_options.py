# SPDX-License-Identifier: Apache-2.0
"""The path client's options: wrong ones, services and tokens that are not usable, and files of tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hostlib import Device, DeviceError
from tests.hostlib.conftest import A
from tests.hostlib.path_service import TOKEN, PathService, eventually

NEEDS_SERVICE = "policy='controller' needs path_service, where the path service listens, and token_file or token"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, NEEDS_SERVICE),
        ({"path_service": "h:1"}, NEEDS_SERVICE),
        (
            {"path_service": "h:1", "token": "t", "token_file": "f"},
            "token and token_file exclude each other: give one of them",
        ),
        ({"policy": "ecmp", "path_service": "h:1"}, "path_service is only for policy='controller', not for 'ecmp'"),
        ({"policy": "ecmp", "token": "t"}, "token_file or token is only for policy='controller', not for 'ecmp'"),
        ({"path_service": "h:1", "token": "t", "elephant_bytes": 0}, f"elephant_bytes must be 1 to {2**50}, not 0"),
        ({"path_service": "h:1", "token": "t", "assign_wait_s": -1}, "assign_wait_s must be 0 to 1000000, not -1"),
        ({"path_service": "h:1", "token": "t", "revert_rtt": 0.5}, "revert_rtt must be 1 to 1000000, not 0.5"),
        (
            {"path_service": "h:1", "token": "t", "reconnect_s": (2, 1)},
            "reconnect_s must be two numbers in ascending order, each 0.001 to 1000000, not (2, 1)",
        ),
        ({"job": "two words"}, "job must be 1 to 64 printable ASCII characters without blanks, not 'two words'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Device(A, **{"policy": "controller", **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path_service": "10.0.0.9"}, "'10.0.0.9' is not where a path service listens: write HOST:PORT, as in"),
        ({"path_service": "10.0.0.9:0"}, "'10.0.0.9:0' is not where a path service listens"),
        ({"path_service": "10.0.0.9:70000"}, "'10.0.0.9:70000' is not where a path service listens"),
        ({"path_service": "256.0.0.1.invalid:1"}, "the path service's host '256.0.0.1.invalid' has no address: "),
        ({"token": "two words"}, "the path service's token must be 1 to 256 printable characters without blanks"),
    ],
)
def test_unusable_services_and_tokens_are_device_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DeviceError, match=f"^{re.escape(message)}"):
        Device(A, **{"policy": "controller", "path_service": "127.0.0.1:1", "token": TOKEN, **options})


@pytest.fixture
def service() -> Iterator[PathService]:
    with PathService() as service:
        yield service


def test_a_token_file_must_be_private(service: PathService, tmp_path: Path) -> None:
    def opened(path: Path) -> None:
        with Device(A, policy="controller", path_service=service.address, token_file=path) as device:
            eventually(lambda: device.counters()["path_client"]["connected"], "never connected")

    file = tmp_path / "token"
    with pytest.raises(DeviceError, match="cannot be read: No such file"):
        opened(file)
    file.write_text(TOKEN + "\n")
    file.chmod(0o640)
    with pytest.raises(
        DeviceError, match=f"^the token file {file} is open to others: make it your own with chmod 600$"
    ):
        opened(file)
    file.chmod(0o600)
    opened(file)
    for wrong in ("", "two words", "x" * 300):
        file.write_text(wrong)
        with pytest.raises(DeviceError, match="holds no token: one line of 1 to 256 printable characters"):
            opened(file)
    with pytest.raises(DeviceError, match="is not a regular file"):
        opened(tmp_path)
