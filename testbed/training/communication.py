# SPDX-License-Identifier: Apache-2.0
"""How long a GPU's collectives and transfers take in an iteration, whether computing hides them or not."""

from testbed.training.closed_form import Estimate, Stage, stage_of
from testbed.training.clusters import Cluster, Group
from testbed.training.operators import Operator
from testbed.training.strategies import Strategy
from testbed.training.transformer import Transformer, layer


def exposed_s(found: Estimate) -> float:
    """Seconds of an iteration in which a GPU does nothing but communicate."""
    return found.tensor_s + found.expert_s + found.transfer_s + found.data_s


def busy_s(model: Transformer, strategy: Strategy, cluster: Cluster) -> float:
    """Seconds that an inner stage's collectives and transfers take one after the other: exposed and hidden.

    Embedding and output are left out. Raises ValueError as `closed_form.check`.
    """
    stage = stage_of(model, strategy, cluster)
    block = layer(model, strategy.microbatch, strategy.tensor, strategy.sequence, strategy.expert)
    tensor, expert = cluster.group(strategy.tensor), cluster.group(strategy.expert, strategy.tensor)
    again = strategy.recomputation == "full"
    each = sum(_tensor_s(one, tensor, again) + _expert_s(one, expert, again) for one in block)
    transfers = 2 * strategy.interleave * strategy.microbatches * stage.transfer_s
    return strategy.microbatches * stage.layers * each + transfers + _copies_s(strategy, stage)


def _tensor_s(one: Operator, group: Group, again: bool) -> float:
    forward = sum(group.seconds(sent) for sent in one.sent_forward)
    behind = [sent for sent in (one.behind_input, one.behind_weight) if sent is not None]
    return (1 + again) * forward + sum(group.seconds(sent) for sent in (*one.sent_backward, *behind))


def _expert_s(one: Operator, group: Group, again: bool) -> float:
    return (2 + again) * sum(group.seconds(sent) for sent in one.exchanged)


def _copies_s(strategy: Strategy, stage: Stage) -> float:
    if strategy.data == 1:
        return 0.0
    gathers = 2 * strategy.microbatches if strategy.zero == 3 else 1
    return stage.layers * (stage.gradient_s + gathers * stage.gather_s)
