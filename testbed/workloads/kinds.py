# SPDX-License-Identifier: Apache-2.0
"""The kinds of workloads that a spec can name. The module of a kind is imported when a spec names it.

To add one: a module like its neighbours, and a line in `_OURS`. Another package adds one by an entry point of the group
`paralet.workloads` with the name of the kind, which leads to its class.
"""

from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from testbed.workloads.base import Workload
from testbed.workloads.files import from_file, names_python

GROUP = "paralet.workloads"

_OURS = {
    "ring_allreduce": "testbed.workloads.ring_allreduce:RingAllreduce",
    "halving_doubling_allreduce": "testbed.workloads.halving_doubling:HalvingDoublingAllreduce",
    "permutation": "testbed.workloads.permutation:Permutation",
    "pairwise_alltoall": "testbed.workloads.pairwise_alltoall:PairwiseAlltoall",
    "pipeline": "testbed.workloads.pipeline:Pipeline",
    "parameter_server": "testbed.workloads.parameter_server:ParameterServer",
    "hierarchical_allgather": "testbed.workloads.hierarchical:HierarchicalAllgather",
    "hierarchical_reduce_scatter": "testbed.workloads.hierarchical:HierarchicalReduceScatter",
    "hierarchical_allreduce": "testbed.workloads.hierarchical:HierarchicalAllreduce",
    "rail_alltoall": "testbed.workloads.rail_alltoall:RailAlltoall",
    "training": "testbed.workloads.training:Training",
    "nccl_ring_allreduce": "testbed.workloads.nccl:NcclRingAllreduce",
    "nccl_tree_allreduce": "testbed.workloads.nccl:NcclTreeAllreduce",
    "nccl": "testbed.workloads.nccl:NcclCollective",
    "torch": "testbed.workloads.torch_training:TorchTraining",
    "command": "testbed.workloads.command:Commands",
    "snapshot": "testbed.workloads.snapshot:Snapshot",
    "trace": "testbed.workloads.trace:Trace",
    "language_model": "testbed.workloads.language_model:LanguageModel",
}


@cache
def kinds() -> dict[str, EntryPoint]:
    """Every kind by its name: ours, and those of other packages. A package cannot replace one of ours."""
    ours = [EntryPoint(name, value, GROUP) for name, value in _OURS.items()]
    return {
        kind.name: kind for kind in (*ours, *(entry for entry in entry_points(group=GROUP) if entry.name not in _OURS))
    }


@cache
def workload_class(kind: EntryPoint) -> type[Workload]:
    """The class of a kind. Raises ValueError when another package's cannot be imported, or is no workload."""
    try:
        found = kind.load()
    except Exception as error:  # whatever its module does
        raise ValueError(f"workload {kind.name} is {kind.value}, which cannot be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Workload)):
        raise ValueError(f"workload {kind.name} is {kind.value}, which is no class of testbed.workloads.Workload")
    return found


class ByKind:
    """Annotates `Workload` where the key `kind`, or a Python `file`, says which class the data have.

    `more` has further kinds, which no spec can name: the module and the class of each, as `testbed.training:Job`.
    """

    def __init__(self, **more: str) -> None:
        self._more = [EntryPoint(name, value, GROUP) for name, value in more.items()]

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        choices: dict[Any, CoreSchema] = {
            kind.name: core_schema.no_info_plain_validator_function(partial(_validated, kind))
            for kind in (*kinds().values(), *self._more)
        }
        # As with pydantic's SerializeAsAny, all keys of the class are written, not only those of `Workload`.
        anything = core_schema.simple_ser_schema("any")
        by_kind = core_schema.tagged_union_schema(choices, "kind", from_attributes=True)
        return core_schema.with_info_wrap_validator_function(_by_file, by_kind, serialization=anything)

    def __get_pydantic_json_schema__(self, _: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """That of every kind, which imports them all, and of a Python file, whose class may have any keys."""
        found = []
        for kind in (*kinds().values(), *self._more):
            reference = handler(workload_class(kind).__pydantic_core_schema__)
            keys = handler.resolve_ref_schema(reference)
            keys["required"] = ["kind", *(key for key in keys.get("required", ()) if key != "kind")]
            found.append(reference)
        return {"oneOf": [*found, FROM_FILE]}


FROM_FILE: JsonSchemaValue = {
    "title": "Python file",
    "type": "object",
    "description": "A workload of your own: a Python file, and the keys that its class takes.",
    "properties": {"file": {"type": "string", "pattern": r"\.py$"}},
    "required": ["file"],
}

AnyWorkload = Annotated[Workload, ByKind()]
"""A workload of any kind that a spec can name."""


def _by_file(values: Any, by_kind: core_schema.ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    if isinstance(values, Workload) and names_python(vars(values)):
        return values  # it is validated already
    return from_file(values, info.context) if names_python(values) else by_kind(values)


def _validated(kind: EntryPoint, value: object) -> Workload:
    return workload_class(kind).model_validate(value)
