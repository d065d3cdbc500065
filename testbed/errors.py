# SPDX-License-Identifier: Apache-2.0
"""The ways in which a command can end badly. Each error is one sentence, meant to be read by a person."""


class TestbedError(Exception):
    """Something went wrong while a valid request was carried out. The command exits with status 1."""

    __test__ = False  # not a test case, whatever pytest makes of the name


class InputError(TestbedError):
    """The request cannot be carried out as it stands: a wrong spec, a wrong argument, a machine that lacks something.

    The command exits with status 2 and nothing has been started.
    """


def sentence_of(error: OSError) -> str:
    """What nobody foresees of the system: a full disk, a folder where a file should be."""
    file, reason = error.filename2 or error.filename, error.strerror or str(error)
    return f"{file} cannot be used: {reason}" if file else reason


class Misfit(ValueError):
    """A spec asks for what cannot be; `where` is the place in it, which `netmodel.load_yaml` turns into a line."""

    def __init__(self, what: str, *where: str | int) -> None:
        super().__init__(what)
        self.where = where
