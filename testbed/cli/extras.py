# SPDX-License-Identifier: Apache-2.0
"""The extras of the installation, and what a command says when one is missing. docs/dependencies.md describes them."""

from importlib.util import find_spec
from typing import Literal

from testbed.errors import InputError

Extra = Literal["models", "service", "fabric", "top"]

_MODELS = ("highspy", "jinja2", "joblib", "matplotlib", "numpy", "pydantic", "yaml")
_SERVICE = ("highspy", "numpy", "pydantic", "uvloop", "yaml")

MODULES: dict[Extra, tuple[str, ...]] = {
    "models": _MODELS,
    "service": _SERVICE,
    "fabric": tuple(dict.fromkeys((*_MODELS, *_SERVICE, "os_ken"))),
    "top": ("textual",),
}
"""The modules that each extra of pyproject.toml adds to the base."""

ENGINE = "hostlib._engine"
"""The native engine, which an install with PARALET_PARTS=models lacks."""
WITHOUT_ENGINE = (
    "the native engine is not in this install: run `make setup` in a checkout, or install again without "
    "PARALET_PARTS=models"
)
"""What a command says that needs the engine, where there is none."""


def missing(extra: Extra) -> list[str]:
    """The modules of an extra that cannot be imported here."""
    return [module for module in MODULES[extra] if find_spec(module) is None]


def require(extra: Extra, what: str) -> None:
    """Raises InputError when a module of `extra`, without which `what` does not work, is missing.

    Commands call it before they start anything: some of the modules are imported only when the results are there.
    """
    absent = missing(extra)
    if absent:
        raise InputError(f"{what} needs {', '.join(absent)}: run pip install 'paralet[{extra}]'")
