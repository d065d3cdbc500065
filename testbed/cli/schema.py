# SPDX-License-Identifier: Apache-2.0
"""`paralet schema`: JSON Schemas of the files that users write, from the models that read these files."""

import json
from collections.abc import Callable
from typing import Any

import click

from testbed.cli.extras import require

DIALECT = "https://json-schema.org/draft/2020-12/schema"

KINDS = ("experiment", "topology", "cluster", "plan")


@click.command(epilog="Example: paralet schema experiment > experiment.schema.json")
@click.argument("kind", type=click.Choice(KINDS))
def schema(kind: str) -> None:
    """Print the JSON Schema of a kind of YAML file, by which editors complete keys and mark mistakes.

    The kinds are experiment (`paralet run`), topology (`--topology`), cluster (`paralet cluster`) and plan (`paralet
    plan`). A schema knows each key, its type, the limits of its number, and how quantities are written. The command
    that reads a file checks the rest: most limits of quantities with units, and what keys have to do with each other,
    such as a link that the topology lacks.
    """
    require("models", "paralet schema")
    click.echo(json.dumps(schema_of(kind), indent=2))


def schema_of(kind: str) -> dict[str, Any]:
    """The schema of one of `KINDS`. Raises KeyError for another."""
    from pydantic import BaseModel

    from netmodel import TopologySpec
    from testbed.research.cluster_plans.job import Job
    from testbed.spec.cluster import ClusterSpec
    from testbed.spec.written import Spec

    models: tuple[type[BaseModel], ...] = (Spec, TopologySpec, ClusterSpec, Job)
    return {"$schema": DIALECT, **_with_limits(dict(zip(KINDS, models, strict=True))[kind].model_json_schema())}


_LIMITS: dict[str, tuple[str, Callable[[float, float], float]]] = {
    "ge": ("minimum", max),
    "gt": ("exclusiveMinimum", max),
    "le": ("maximum", min),
    "lt": ("exclusiveMaximum", min),
}


def _with_limits(node: Any) -> Any:
    """The schema with the keywords of JSON Schema for limits that pydantic leaves in its own.

    It does so for a field whose type a validator of ours reads from text. Of two limits the narrower one counts.
    """
    if isinstance(node, list):
        return [_with_limits(part) for part in node]
    if not isinstance(node, dict):
        return node
    found = {key: _with_limits(part) for key, part in node.items() if not _is_limit(key, part)}
    for key, limit in node.items():
        if _is_limit(key, limit):
            keyword, narrower = _LIMITS[key]
            found[keyword] = narrower(found[keyword], limit) if keyword in found else limit
    return found


def _is_limit(key: str, value: Any) -> bool:
    return key in _LIMITS and isinstance(value, (int, float))
