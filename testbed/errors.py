# SPDX-License-Identifier: Apache-2.0
"""The ways in which a command can fail. Each error is one sentence for the user.

Of other packages only `netmodel.printable` is imported here: testbed.nccl runs on machines without the rest.
"""

from errno import EMFILE
from resource import RLIMIT_NOFILE, getrlimit


class TestbedError(Exception):
    """Something went wrong while a valid request was carried out. The command exits with status 1."""

    __test__ = False  # not a test case, whatever pytest makes of the name


class PeerLostError(TestbedError):
    """A rank could not go on because a peer closed its connections or is gone. The cause is the peer's failure."""


class InputError(TestbedError):
    """The request cannot be carried out as it stands: a wrong spec, a wrong argument, a machine that lacks something.

    The command exits with status 2 and nothing has been started.
    """


def sentence_of(error: OSError) -> str:
    """A sentence for an error of the operating system, such as a full disk or a folder where a file should be."""
    if error.errno == EMFILE:
        most = getrlimit(RLIMIT_NOFILE)[0]
        return (
            f"this process may open {most} files and needs more; raise the limit (`ulimit -n`), or take a smaller spec"
        )
    file, reason = error.filename2 or error.filename, error.strerror or str(error)
    return f"{file} cannot be used: {reason}" if file else reason


def lines_of(error: Exception | str) -> str:
    """The text that the command prints on standard error, each line after the name of the program.

    A `netmodel.SpecError` has a line for every mistake; others have one sentence.
    """
    from netmodel.printable import printable  # not at the top: importing netmodel takes long

    sentences = [str(error)] if isinstance(error, str | TestbedError) else str(error).splitlines()
    return "\n".join(f"paralet: {printable(' '.join(sentence.split()))}" for sentence in sentences)
