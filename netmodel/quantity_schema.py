# SPDX-License-Identifier: Apache-2.0
"""How JSON Schemas describe quantities that are written as text, such as "20 Mbit/s"."""

from typing import Annotated, Any, Literal

from pydantic import WithJsonSchema

DECIMAL = r"[0-9]+(\.[0-9]+)?"
"""A number without sign or exponent."""

WHOLE = r"[0-9]+(\.0+)?"
"""Such a number without a fraction."""


def written(number: Literal["integer", "number"], text: str, wrong: str, least: int, most: float | None = None) -> Any:
    """The type of a number from `least` to `most`, or of text that the regular expression `text` matches.

    For `json_schema_input_type`. Editors show `wrong` for other text.
    """
    limits = {"minimum": least} if most is None else {"minimum": least, "maximum": most}
    words = {"pattern": rf"^\s*({text})\s*$", "patternErrorMessage": f"This is {wrong}."}
    return Annotated[Any, WithJsonSchema({"type": [number, "string"], **limits, **words})]
