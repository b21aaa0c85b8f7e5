"""Super-resolution of brain graphs: edge-conditioned convolutions on fully connected graphs, in dense form.

A connectome of n regions is a symmetric n x n matrix with ones on its diagonal; a sample is the vector of its entries
above the diagonal, row by row. Nodes are regions, their features the rows; all are neighbours, themselves included.

Source: Ghilea and Rekik, "Replica Tree-based Federated Learning using Limited Data", section 4 (models and task).
Departures: the prediction of a graph is the product of its own features, and the loss is taken above the diagonal.
"""

import torch
from torch import Tensor, nn

from fedsmall.data.federation import Task
from fedsmall.data.sources.connectomes import REGIONS, pairs, regions_of

EPSILON, MOMENTUM, DROPOUT = 1e-3, 0.1, 0.5  # the authors' settings


def matrices(vectors: Tensor, regions: int) -> Tensor:
    """Symmetric matrices with ones on the diagonal, (..., regions, regions), from vectors (..., entries)."""
    row, column = torch.triu_indices(regions, regions, offset=1, device=vectors.device)
    place = torch.zeros(regions, regions, dtype=torch.long, device=vectors.device)
    place[row, column] = place[column, row] = torch.arange(len(row), device=vectors.device) + 1
    ones = torch.ones_like(vectors[..., :1])
    return torch.cat([ones, vectors], dim=-1)[..., place]  # entry 0 is the diagonal's one


def above_diagonal(graphs: Tensor) -> Tensor:
    """The entries above the diagonal, (..., entries), of matrices (..., regions, regions)."""
    row, column = torch.triu_indices(graphs.shape[-1], graphs.shape[-1], offset=1, device=graphs.device)
    return graphs[..., row, column]


class EdgeConvolution(nn.Module):
    """An edge-conditioned convolution over fully connected graphs with one number on each edge.

    x_i' = root(x_i) + mean over j of x_j W(e_ij) + bias with W(e) = ReLU(e a + c). Source: Gilmer et al. 2017.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        self.edge = nn.Linear(1, inputs * outputs)
        self.root = nn.Linear(inputs, outputs, bias=False)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Features (graphs, nodes, inputs) and edges (graphs, nodes, nodes) -> (graphs, nodes, outputs)."""
        entries, order = edges.sort(dim=-1)  # (graphs, nodes, nodes): node by node, the neighbours by rising entry
        features = torch.take_along_dim(x[:, None], order[..., None], dim=2)  # (graphs, nodes, nodes, inputs)
        slope, offset = (t.view(self.inputs, self.outputs).T for t in (self.edge.weight, self.edge.bias))
        first = self._first_beyond(entries, slope.detach(), offset.detach())  # (graphs, nodes, outputs, inputs)
        heard = slope * _beyond(features * entries[..., None], first, slope)
        heard = (heard + offset * _beyond(features, first, slope)).sum(-1)  # (graphs, nodes, outputs)
        convolved: Tensor = self.root(x) + heard / x.shape[1] + self.bias
        return convolved

    def _first_beyond(self, entries: Tensor, slope: Tensor, offset: Tensor) -> Tensor:
        """For every weight e a + c, the number of the first neighbour whose entry e lies beyond -c / a."""
        edge = torch.where(slope == 0, torch.where(offset > 0, -torch.inf, torch.inf), -offset / slope)
        edge = torch.where(slope > 0, edge.nextafter(edge.new_full((), torch.inf)), edge)  # on the edge a ReLU is off
        rows = edge.flatten().expand(*entries.shape[:2], -1).contiguous()
        return torch.searchsorted(entries, rows).view(*entries.shape[:2], self.outputs, self.inputs)


def _beyond(terms: Tensor, first: Tensor, slope: Tensor) -> Tensor:
    """For every weight, the sum of the neighbours' terms over those whose entry lets it through the ReLU.

    ``terms``, (graphs, nodes, neighbours, inputs), are in the order of entries, and a weight e a + c is positive on one
    side of -c / a: the sum, (graphs, nodes, outputs, inputs), is a difference of two running sums.
    """
    running = nn.functional.pad(terms.cumsum(2), (0, 0, 1, 0))  # (graphs, nodes, 1 + neighbours, inputs)
    below = running.gather(2, first)
    return torch.where(slope < 0, below, running[:, :, -1:] - below)


class GraphNet(nn.Module):
    """Convolutions of growing width, each with BatchNorm, sigmoid and dropout; then X' X predicts the larger graph."""

    def __init__(self, widths: tuple[int, ...], regions: int = REGIONS) -> None:
        super().__init__()
        self.regions = regions
        self.layers = len(widths)
        before = regions
        for number, width in enumerate(widths, 1):
            self.add_module(f"conv{number}", EdgeConvolution(before, width))
            self.add_module(f"norm{number}", nn.BatchNorm1d(width, eps=EPSILON, momentum=MOMENTUM))
            self.add_module(f"dropout{number}", nn.Dropout(DROPOUT))
            before = width

    def forward(self, vectors: Tensor) -> Tensor:
        """(graphs, entries) -> (graphs, entries of the larger graph)."""
        edges = matrices(vectors, self.regions)
        x = edges
        for number in range(1, self.layers + 1):
            x = self.get_submodule(f"conv{number}")(x, edges)
            x = self.get_submodule(f"norm{number}")(x.flatten(0, 1)).reshape(x.shape)  # over the nodes of all graphs
            x = self.get_submodule(f"dropout{number}")(torch.sigmoid(x))
        return above_diagonal(x.transpose(1, 2) @ x)


def g1(task: Task, *, widths: tuple[int, ...] = (35, 160)) -> nn.Module:
    """35 regions to 160: 21,060 parameters (RepTreeFL's G1). The last width is the number of regions predicted."""
    return _fitting(task, tuple(widths))


def g2(task: Task, *, widths: tuple[int, ...] = (35, 160, 268)) -> nn.Module:
    """35 regions to 268: 150,504 parameters (RepTreeFL's G2); its first two layers are G1's."""
    return _fitting(task, tuple(widths))


def _fitting(task: Task, widths: tuple[int, ...]) -> nn.Module:
    if len(task.input_shape) != 1:
        raise ValueError(f"a graph comes as the vector of its entries above the diagonal, not as {task.input_shape}")
    if task.outputs != pairs(widths[-1]):
        raise ValueError(f"it predicts {pairs(widths[-1])} entries ({widths[-1]} regions); the task has {task.outputs}")
    return GraphNet(widths, regions_of(task.input_shape[0]))
