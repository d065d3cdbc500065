# SPDX-License-Identifier: Apache-2.0
"""`paralet schema`: JSON Schemas of the files that users write, from the models that read these files."""

import json
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
    plan`). A schema knows each key, its type and its limits. Only the command that reads a file checks what keys have
    to do with each other, such as a link that the topology lacks.
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
    return {"$schema": DIALECT, **dict(zip(KINDS, models, strict=True))[kind].model_json_schema()}
