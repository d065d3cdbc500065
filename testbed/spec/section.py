# SPDX-License-Identifier: Apache-2.0
"""What all sections of a spec have in common."""

from pydantic import BaseModel, ConfigDict

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""Names become names of files and folders."""


class Section(BaseModel):
    """A mapping in a spec. Strict: an unknown key and a quoted number are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
