# SPDX-License-Identifier: Apache-2.0
"""Base class of all sections of a spec."""

from pydantic import BaseModel, ConfigDict

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""Pattern of names, which are also used in file and folder names."""


class Section(BaseModel):
    """A mapping in a spec. Strict: an unknown key and a quoted number are errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
