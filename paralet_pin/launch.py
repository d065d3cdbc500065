# SPDX-License-Identifier: Apache-2.0
"""Starts a program with planned ports: its environment, and the agent beside it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path

from paralet_pin import agent, library
from paralet_pin.jobs import job_of

AGENT = "PARALET_PIN_AGENT"
"""The variable with the path of the agent's socket."""
NETWORKS = "PARALET_PIN_NETWORKS"
WAIT_US = "PARALET_PIN_WAIT_US"
MOST_NETWORKS = 16
_LONGEST_PATH = 107  # bytes, of a Unix socket's address


class LaunchError(Exception):
    """The agent did not start. The message is one sentence, and `usage` is whether the settings are to blame."""

    def __init__(self, sentence: str, *, usage: bool) -> None:
        super().__init__(sentence)
        self.usage = usage


def check_networks(text: str) -> None:
    """Raises ValueError, with one sentence, where a list of networks is none."""
    networks = text.split(",")
    if len(networks) > MOST_NETWORKS:
        raise ValueError(f"{len(networks)} networks are more than {MOST_NETWORKS}: join some of them")
    for network in networks:
        if "/" not in network:
            raise ValueError(f"{network!r} has no length: write it as 10.0.0.0/8")
        ip_network(network)


def settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The agent's variables: the given ones, with a policy and the job's name where these are missing."""
    found = dict(environment)
    if not found.get("PARALET_POLICY"):
        found["PARALET_POLICY"] = "pinned" if found.get("PARALET_PORTS") else "controller"
    found["PARALET_JOB"] = job_of(environment)
    found.pop("LD_PRELOAD", None)  # the agent's own connections are not planned
    return found


def variables(environment: Mapping[str, str], socket: Path) -> dict[str, str]:
    """The program's variables: with the library, before others that are preloaded, and with the agent's socket.

    Raises FileNotFoundError when the library has not been built.
    """
    preloaded = [str(library()), *environment.get("LD_PRELOAD", "").replace(":", " ").split()]
    return {**environment, "LD_PRELOAD": ":".join(preloaded), AGENT: str(socket)}


def start_agent(environment: Mapping[str, str], pid: int) -> Path:
    """Starts the agent of process `pid`, with which it ends, and returns the path of its socket.

    Raises LaunchError, and FileNotFoundError when the agent has not been built.
    """
    program, own = agent(), settings(environment)
    folder = Path(tempfile.mkdtemp(prefix="paralet-pin-", dir=_folder(environment)))
    socket = folder / "agent"
    if len(os.fsencode(socket)) > _LONGEST_PATH:
        folder.rmdir()
        raise LaunchError(f"the path {socket} is longer than {_LONGEST_PATH} bytes: set TMPDIR", usage=True)
    done = subprocess.run([program, socket, str(pid)], env=own, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        folder.rmdir()
        said = done.stderr.strip().removeprefix("paralet: ") or f"the agent ended with status {done.returncode}"
        raise LaunchError(said, usage=done.returncode == 2)
    return socket


def _folder(environment: Mapping[str, str]) -> str:
    return environment.get("XDG_RUNTIME_DIR") or environment.get("TMPDIR") or "/tmp"
