# SPDX-License-Identifier: Apache-2.0
"""How JSON Schemas describe quantities that are written as text, such as "20 Mbit/s"."""

from typing import Annotated, Any, Literal

from pydantic import WithJsonSchema


def written(number: Literal["integer", "number"], least: int, units: str, wrong: str, most: float | None = None) -> Any:
    """The type of a number of at least `least`, or of text of a number and one of `units`, a regular expression.

    For `json_schema_input_type`. Editors show `wrong` for other text.
    """
    limits = {"minimum": least} if most is None else {"minimum": least, "maximum": most}
    pattern = rf"^\s*[0-9]+(\.[0-9]+)?\s*({units})\s*$"
    text = {"pattern": pattern, "patternErrorMessage": f"This is {wrong}."}
    return Annotated[Any, WithJsonSchema({"type": [number, "string"], **limits, **text})]
