# SPDX-License-Identifier: Apache-2.0
"""What is built on process groups, with backend paralet or another: FSDP2, DeviceMesh and distributed checkpoints.

usage: BACKEND=gloo python tests/paralet_torch/composed_suite.py [unittest options] [ComposedTest.test_NAME ...]

PyTorch's wheel has the base classes of its tests of these, but not the tests. Here are the essential cases of
test/distributed/{_composable/fsdp,checkpoint,test_device_mesh.py}. Every test starts four ranks. `make test-torch` runs
all of them.
"""

from __future__ import annotations

import copy
import os
import shutil
import sys
import unittest
from typing import Any

os.environ.setdefault("PARALET_ADDRESSES", "127.0.0.1")
BACKEND = os.environ.setdefault("BACKEND", "paralet")

import torch  # noqa: E402  # reads what is set above
import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as functional  # noqa: E402
import torch.distributed.checkpoint as checkpoint  # noqa: E402
from torch.distributed.checkpoint import state_dict as states  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor  # noqa: E402
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module  # noqa: E402
from torch.testing._internal.common_distributed import MultiProcessTestCase  # noqa: E402

import paralet_torch  # noqa: E402, F401  # registers the backend

STEPS = 4


def model_of(seed: int = 5) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def sharded(model: Any, mesh: DeviceMesh, **options: Any) -> Any:
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def train(model: Any, rank: int, size: int, steps: int = STEPS) -> tuple[list[float], torch.optim.Optimizer]:
    """Losses of the whole batch, of which every rank has a share, and the optimizer."""
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(4 * size, 8, generator=generator), torch.randn(4 * size, 4, generator=generator)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for _ in range(steps):
        loss = torch.nn.functional.mse_loss(model(inputs[rank::size]), targets[rank::size])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().float()
        if size > 1:
            dist.all_reduce(total)
        losses.append(total.item() / size)
    return losses, optimizer


class ComposedTest(MultiProcessTestCase):
    """All cases."""

    @property
    def world_size(self) -> int:
        return 4

    def setUp(self) -> None:
        super().setUp()
        # Importing torch anew in every rank of every test would take most of the time.
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    def join(self) -> None:
        dist.init_process_group(
            BACKEND, init_method=f"file://{self.file_name}", rank=self.rank, world_size=self.world_size
        )
        self.addCleanup(dist.destroy_process_group)

    def mesh(self) -> DeviceMesh:
        self.join()
        return init_device_mesh("cpu", (self.world_size,))

    def grid(self) -> DeviceMesh:
        self.join()
        return init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))

    def assert_trains_alike(self, model: Any, **tolerances: float) -> None:
        alone = model_of()
        expected = []
        generator = torch.Generator().manual_seed(1)
        inputs = torch.randn(4 * self.world_size, 8, generator=generator)
        targets = torch.randn(4 * self.world_size, 4, generator=generator)
        optimizer = torch.optim.Adam(alone.parameters(), lr=0.05)
        for _ in range(STEPS):
            loss = torch.nn.functional.mse_loss(alone(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            expected.append(loss.item())
        got, _ = train(model, self.rank, self.world_size)
        torch.testing.assert_close(
            torch.tensor(got), torch.tensor(expected), **({"rtol": 1e-4, "atol": 1e-5} | tolerances)
        )

    # -- FSDP2 -------------------------------------------------------------------------------------------------------

    def test_fsdp_trains_as_one_process(self) -> None:
        self.assert_trains_alike(sharded(model_of(), self.mesh()))

    def test_fsdp_without_reshard_after_forward(self) -> None:
        self.assert_trains_alike(sharded(model_of(), self.mesh(), reshard_after_forward=False))

    def test_fsdp_hybrid_shard(self) -> None:
        self.assert_trains_alike(sharded(model_of(), self.grid()))

    def test_fsdp_with_offload_to_the_cpu(self) -> None:
        self.assert_trains_alike(sharded(model_of(), self.mesh(), offload_policy=CPUOffloadPolicy(pin_memory=False)))

    def test_fsdp_mixed_precision(self) -> None:
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32
        )
        self.assert_trains_alike(sharded(model_of(), self.mesh(), mp_policy=policy), rtol=0.1, atol=0.1)

    def test_fsdp_norm_of_gradients(self) -> None:
        model, alone = sharded(model_of(), self.mesh()), model_of()
        inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(2))
        for each in (model, alone):
            each(inputs).sum().backward()
        norm: Any = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        torch.testing.assert_close(norm.full_tensor(), torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.1))

    def test_fsdp_with_tensor_parallel(self) -> None:
        mesh = self.grid()
        model = model_of()
        parallelize_module(model, mesh["shard"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(model, mesh=mesh["replicate"])
        inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(2))
        torch.testing.assert_close(model(inputs), model_of()(inputs))
        model(inputs).sum().backward()

    # -- DeviceMesh --------------------------------------------------------------------------------------------------

    def test_mesh_slices(self) -> None:
        mesh = self.grid()
        row, column = divmod(self.rank, 2)
        assert list(mesh.get_coordinate() or ()) == [row, column]
        assert dist.get_process_group_ranks(mesh.get_group("shard")) == [2 * row, 2 * row + 1]
        assert dist.get_process_group_ranks(mesh.get_group("replicate")) == [column, column + 2]
        assert mesh["shard"].get_local_rank() == column
        flat = mesh["replicate", "shard"]._flatten("all")
        assert flat.size() == 4
        total = torch.ones(3)
        dist.all_reduce(total, group=flat.get_group())
        assert total.tolist() == [4.0] * 3

    def test_mesh_from_groups(self) -> None:
        mesh = self.grid()
        again = DeviceMesh.from_group(
            [mesh.get_group("replicate"), mesh.get_group("shard")],
            "cpu",
            mesh=mesh.mesh,
            mesh_dim_names=("replicate", "shard"),
        )
        assert again.get_coordinate() == mesh.get_coordinate()

    def test_mesh_collectives(self) -> None:
        mesh = self.grid()
        own = torch.full((2, 3), float(self.rank))
        row, column = divmod(self.rank, 2)
        gathered = functional.all_gather_tensor(own, 0, (mesh, 1))
        assert gathered[:, 0].tolist() == [2.0 * row] * 2 + [2.0 * row + 1] * 2
        summed = functional.reduce_scatter_tensor(own, "sum", 0, (mesh, 0))
        assert summed.tolist() == [[2.0 * column + 2] * 3]

    def test_dtensor_with_uneven_shards(self) -> None:
        mesh = self.mesh()
        whole = torch.arange(30.0).reshape(5, 6)
        tensor = distribute_tensor(whole, mesh, [Shard(0)])
        assert torch.equal(tensor.full_tensor(), whole)
        assert torch.equal(tensor.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
        product: Any = tensor @ distribute_tensor(whole.t().contiguous(), mesh, [Replicate()])
        torch.testing.assert_close(product.full_tensor(), whole @ whole.t())

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def folder(self) -> str:
        """One of all ranks, removed after the test."""
        out = f"{self.file_name}-checkpoint"

        def remove() -> None:
            dist.barrier()
            if self.rank == 0:
                shutil.rmtree(out, ignore_errors=True)

        self.addCleanup(remove)
        return out

    def saved(self, model: Any, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        weights, optimizers = states.get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": optimizers}

    def restore(self, folder: str, mesh: DeviceMesh) -> Any:
        model = sharded(model_of(6), mesh)
        _, optimizer = train(model, self.rank, self.world_size, steps=1)
        state = self.saved(model, optimizer)
        checkpoint.load(state, checkpoint_id=folder)
        states.set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        return model

    def assert_same_parameters(self, one: Any, two: Any) -> None:
        for ours, theirs in zip(one.parameters(), two.parameters(), strict=True):
            assert torch.equal(ours.full_tensor(), theirs.full_tensor())

    def test_checkpoint_of_model_and_optimizer(self) -> None:
        mesh = self.mesh()
        model = sharded(model_of(), mesh)
        _, optimizer = train(model, self.rank, self.world_size)
        checkpoint.save(self.saved(model, optimizer), checkpoint_id=self.folder())
        self.assert_same_parameters(model, self.restore(self.folder(), mesh))

    def test_checkpoint_beside_training(self) -> None:
        mesh = self.mesh()
        model = sharded(model_of(), mesh)
        _, optimizer = train(model, self.rank, self.world_size)
        kept = [parameter.full_tensor().detach().clone() for parameter in model.parameters()]
        beside = dist.new_group()  # the order of operations of one group would differ among ranks
        writing = checkpoint.async_save(
            self.saved(model, optimizer), checkpoint_id=(folder := self.folder()), process_group=beside
        )
        train(model, self.rank, self.world_size)
        writing.result()
        for parameter, expected in zip(self.restore(folder, mesh).parameters(), kept, strict=True):
            assert torch.equal(parameter.full_tensor(), expected)

    def test_checkpoint_in_other_shards(self) -> None:
        mesh = self.mesh()
        whole = torch.arange(32.0).reshape(4, 8)
        checkpoint.save({"w": distribute_tensor(whole, mesh, [Shard(0)])}, checkpoint_id=self.folder())
        grid = init_device_mesh("cpu", (2, 2))
        loaded = {"w": distribute_tensor(torch.zeros(4, 8), grid, [Shard(1), Shard(0)])}
        checkpoint.load(loaded, checkpoint_id=self.folder())
        assert torch.equal(loaded["w"].full_tensor(), whole)

    def test_full_state_dict_from_rank_0(self) -> None:
        model = sharded(model_of(), self.mesh())
        full = {name: tensor.detach() * 3 for name, tensor in model_of().named_parameters()}
        expected = copy.deepcopy(full)
        how = states.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        states.set_model_state_dict(model, full if self.rank == 0 else {}, options=how)
        for name, parameter in model.named_parameters():
            assert isinstance(parameter, DTensor)
            assert torch.equal(parameter.full_tensor(), expected[name])

    def test_full_state_dict_on_rank_0(self) -> None:
        model = sharded(model_of(), self.mesh())
        how = states.StateDictOptions(full_state_dict=True, cpu_offload=True)
        full = states.get_model_state_dict(model, options=how)
        assert sorted(full) == (sorted(dict(model_of().named_parameters())) if self.rank == 0 else [])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
