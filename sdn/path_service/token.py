# SPDX-License-Identifier: Apache-2.0
"""The shared token that authenticates hosts and operators: a file that only its owner may read."""

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

_LEAST = 16
_MOST = 256


class TokenError(ValueError):
    """A token file cannot be used; the text is one sentence with the reason and the remedy."""


def read_token(path: Path) -> str:
    """The token in a file, without surrounding white space. Raises TokenError."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), encoding="ascii") as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.read(4 * _MOST).strip() if stat.S_ISREG(mode) else ""
    except FileNotFoundError:
        raise TokenError(f"there is no token file {path}: `paralet path-service run` makes one") from None
    except OSError as error:
        raise TokenError(f"the token file {path} cannot be read: {error.strerror}") from error
    except UnicodeError:
        raise TokenError(f"the token file {path} holds other characters than ASCII's") from None
    if not stat.S_ISREG(mode):
        raise TokenError(f"the token file {path} is not a regular file")
    if mode & 0o077:
        raise TokenError(f"the token file {path} may be read or written by others: chmod 600 {path}")
    if not _LEAST <= len(token) <= _MOST or not token.isprintable() or " " in token:
        raise TokenError(f"the token in {path} must be one word of {_LEAST} to {_MOST} printable characters")
    return token


def made_or_read(path: Path) -> str:
    """The token in a file, which is made first if there is none. Raises TokenError."""
    if not path.exists():
        with suppress(FileExistsError):  # another path service that starts has just made it
            make_token(path)
    return read_token(path)


def make_token(path: Path) -> None:
    """Writes a random token of 256 bits to a new file, which appears when it is whole.

    Raises TokenError, and FileExistsError when there is something at `path`.
    """
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(secrets.token_hex(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(fresh, path)
    except FileExistsError:
        raise
    except OSError as error:
        raise TokenError(f"the token file {path} cannot be made: {error.strerror}") from error
    finally:
        fresh.unlink(missing_ok=True)
