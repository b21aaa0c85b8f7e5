"""Whole replica trees on their way from site to site: replicas as part of the state that is carried with an anchor.

A carried replica's arrays are named "replica/<node>/<parameter or moment>"; every row of a stack carries equally many.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from fedsmall.training.stack import REPLICA, Stack, Tensors, index_of


def is_replica(name: str) -> bool:
    """Whether a carried array belongs to a replica, and not to the anchor's optimizer."""
    return name.startswith(f"{REPLICA}/")


def own_state(stack: Stack) -> Tensors:
    """A row's arrays without the replicas that it carries: parameters, buffers and moments."""
    return stack.state | {name: tensor for name, tensor in stack.optimizer.items() if not is_replica(name)}


def carry(stack: Stack, source: Stack, nodes: Sequence[str]) -> None:
    """Give every row replicas that equal it."""
    state = own_state(source)
    stack.optimizer |= {f"{REPLICA}/{node}/{name}": tensor.clone() for node in nodes for name, tensor in state.items()}


def planted(stack: Stack, nodes: Sequence[str], young: np.ndarray) -> Stack:
    """All nodes of all rows' trees as one stack, row by row; the trees of ``young`` rows are grown anew."""
    fresh = torch.from_numpy(young).to(next(iter(stack.parameters.values())).device)

    def joined(tensors: Mapping[str, torch.Tensor]) -> Tensors:
        grown = {}
        for name, own in tensors.items():
            columns = [own]
            for node in nodes[1:]:
                theirs = stack.optimizer[f"{REPLICA}/{node}/{name}"]
                columns.append(torch.where(fresh.reshape(-1, *[1] * (own.dim() - 1)), own, theirs))
            grown[name] = torch.stack(columns, dim=1).flatten(0, 1)  # (rows * nodes, ...)
        return grown

    moments = {name: tensor for name, tensor in stack.optimizer.items() if not is_replica(name)}
    return Stack(stack.names, joined(stack.parameters), joined(stack.buffers), joined(moments))


def put_anchors(stack: Stack, nodes: Stack, anchors: np.ndarray) -> None:
    """Write the anchors among trained nodes, models and moments, back into their rows."""
    state = own_state(nodes)
    for name, tensor in own_state(stack).items():
        tensor.copy_(state[name][index_of(anchors, tensor)])


def put_replicas(stack: Stack, nodes: Stack, anchors: np.ndarray, names: Sequence[str]) -> None:
    """Let every row carry the trained replicas, whose rows follow their anchor's."""
    for name, tensor in own_state(nodes).items():
        for place, node in enumerate(names[1:], 1):
            stack.optimizer[f"{REPLICA}/{node}/{name}"].copy_(tensor[index_of(anchors + place, tensor)])
