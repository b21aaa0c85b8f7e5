"""The graph task: dense edge-conditioned convolutions, the two networks, and connectomes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedsmall.data.federation import Task
from fedsmall.data.sources.connectomes import generate, pairs, regions_of, vectors
from fedsmall.errors import DataError
from fedsmall.models.graphs import EdgeConvolution, GraphNet, above_diagonal, g1, g2, matrices


def graphs(count: int, regions: int, seed: int = 0) -> torch.Tensor:
    entries = torch.rand(count, pairs(regions), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return matrices(entries, regions)


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def task(outputs: int, inputs: int = 595) -> Task:
    return Task("graphs", (inputs,), outputs, "l1", ("mae",))


def test_the_networks_have_the_papers_sizes():
    assert size(g1(task(12720))) == 21_060
    assert size(g2(task(35778))) == 150_504


def test_the_first_two_layers_of_both_networks_agree():
    small, large = g1(task(12720)).state_dict(), g2(task(35778)).state_dict()

    assert set(small) < set(large)
    assert all(small[name].shape == large[name].shape for name in small)


@settings(deadline=None)
@given(st.integers(2, 12))
def test_vectors_and_matrices_are_the_same_graph(regions):
    graph = graphs(2, regions)

    assert regions_of(pairs(regions)) == regions
    assert (graph == graph.transpose(1, 2)).all()
    assert (graph.diagonal(dim1=1, dim2=2) == 1).all()
    assert (matrices(above_diagonal(graph), regions) == graph).all()


@pytest.mark.parametrize("entries", [0, 2, 594])
def test_a_number_of_entries_that_no_graph_has_is_refused(entries):
    with pytest.raises(ValueError, match="above its diagonal"):
        regions_of(entries)


def test_a_convolution_by_hand():
    # two nodes, one feature each (3 and 5), edge .5 between them, W(e) = ReLU(2 e - 1): W(1) = 1, W(.5) = 0
    layer = EdgeConvolution(1, 1).double()
    with torch.no_grad():
        layer.edge.weight.fill_(2)
        layer.edge.bias.fill_(-1)
        layer.root.weight.fill_(10)
        layer.bias.fill_(0.25)

    y = layer(torch.tensor([[[3.0], [5.0]]]).double(), torch.tensor([[[1.0, 0.5], [0.5, 1.0]]]).double())

    np.testing.assert_allclose(y.detach()[0, :, 0], [30 + 3 / 2 + 0.25, 50 + 5 / 2 + 0.25])


def test_a_convolution_is_what_its_formula_says_node_by_node():
    torch.manual_seed(0)
    layer = EdgeConvolution(3, 4).double()
    edges = graphs(2, 5)
    x = torch.rand(2, 5, 3, dtype=torch.float64)

    y = layer(x, edges)

    for graph in range(2):
        for i in range(5):
            heard = sum(
                x[graph, j] @ torch.relu(layer.edge(edges[graph, i, j].reshape(1))).reshape(3, 4) for j in range(5)
            )
            np.testing.assert_allclose(
                y[graph, i].detach(), (layer.root(x[graph, i]) + heard / 5 + layer.bias).detach(), rtol=1e-12
            )


@pytest.mark.parametrize("regions", [2, 3, 9])
def test_running_sums_equal_every_edges_own_weights_with_gradients(regions):
    torch.manual_seed(regions)
    layer = EdgeConvolution(6, 5).double()
    with torch.no_grad():
        layer.edge.weight[:8] = 0  # weights that no edge changes: on or off for good
        layer.edge.bias[4:12] = 0  # the ReLU's corner lies at an entry of zero
    edges = torch.round(graphs(3, regions) * 4) / 4  # many entries are equal
    x = torch.rand(3, regions, 6, dtype=torch.float64, requires_grad=True)

    fast = layer(x, edges)
    weights = torch.relu(layer.edge(edges[..., None])).unflatten(-1, (6, 5))  # (graphs, nodes, nodes, inputs, outputs)
    slow = layer.root(x) + torch.einsum("gji,gnjio->gno", x, weights) / regions + layer.bias

    np.testing.assert_allclose(fast.detach(), slow.detach(), rtol=0, atol=1e-13)
    held = [x, *layer.parameters()]
    for mine, theirs in zip(*(torch.autograd.grad((y**2).sum(), held) for y in (fast, slow)), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-12)


def test_a_convolution_equals_torch_geometrics_with_its_gradients():
    geometric = pytest.importorskip("torch_geometric.nn", reason="torch_geometric is an optional extra")
    torch.manual_seed(0)
    mine = EdgeConvolution(6, 4).double()
    theirs = geometric.NNConv(6, 4, nn.Sequential(nn.Linear(1, 24), nn.ReLU()), aggr="mean").double()
    with torch.no_grad():
        theirs.nn[0].load_state_dict(mine.edge.state_dict())
        theirs.lin.weight.copy_(mine.root.weight)
        theirs.bias.copy_(mine.bias)
    edges = graphs(3, 7)
    x = torch.rand(3, 7, 6, dtype=torch.float64)
    source, target = (grid.flatten() for grid in torch.meshgrid(torch.arange(7), torch.arange(7), indexing="ij"))
    index = torch.cat([torch.stack([source, target]) + 7 * k for k in range(3)], dim=1)

    ours = mine(x, edges)
    reference = theirs(x.flatten(0, 1), index, edges[:, source, target].reshape(-1, 1)).reshape(ours.shape)
    slopes = [torch.autograd.grad((y**2).sum(), m.parameters()) for y, m in ((ours, mine), (reference, theirs))]

    torch.testing.assert_close(ours, reference, rtol=1e-12, atol=1e-12)
    total = [sorted(float(g.abs().sum()) for g in grads) for grads in slopes]
    np.testing.assert_allclose(*total, rtol=1e-10)


def test_a_graphs_prediction_does_not_depend_on_the_others_in_its_batch():
    torch.manual_seed(0)
    net = GraphNet((5, 8), regions=5).eval()
    batch = torch.rand(4, pairs(5))

    alone = torch.cat([net(row[None]) for row in batch])

    torch.testing.assert_close(net(batch), alone)


@pytest.mark.thorough
def test_training_brings_a_network_much_nearer_to_graphs_it_has_not_seen():
    source, target = (torch.tensor(vectors(g), dtype=torch.float32) for g in generate(40, (8, 12), seed=0))
    torch.manual_seed(0)
    net = GraphNet((8, 12), regions=8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def error() -> float:
        with torch.no_grad():
            return float((net.eval()(source[30:]) - target[30:]).abs().mean())

    before = error()
    net.train()
    for step in range(300):
        rows = torch.arange(5) + 5 * (step % 6)
        loss = (net(source[rows]) - target[rows]).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    assert error() < before / 4


def test_generated_connectomes_are_symmetric_complete_and_between_zero_and_one():
    small, large = generate(5, (35, 160), seed=1)

    for graph, regions in ((small, 35), (large, 160)):
        assert graph.shape == (5, regions, regions)
        assert (graph == graph.transpose(0, 2, 1)).all()
        assert (graph[:, np.arange(regions), np.arange(regions)] == 1).all()
        assert graph.min() >= 0
        assert graph.max() <= 1


def test_a_subjects_small_graph_tells_more_of_its_large_one_than_the_mean_does():
    small, large = (vectors(graph) for graph in generate(120, (35, 60), seed=0))
    x, y = np.hstack([small[:100], np.ones((100, 1))]), large[:100]

    ridge = np.linalg.solve(x.T @ x + np.eye(596), x.T @ y)
    predicted = np.hstack([small[100:], np.ones((20, 1))]) @ ridge

    assert np.abs(predicted - large[100:]).mean() < 0.5 * np.abs(y.mean(axis=0) - large[100:]).mean()


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.arange(8.0).reshape(2, 2, 2), "symmetric"),
        (np.ones((2, 4)), "no symmetric matrix has 4 entries"),
        (np.array([[1.0, np.nan, 0.0]]), "complete"),
        (np.ones(3), "not in 1 dimensions"),
    ],
)
def test_what_is_no_graph_is_refused(array, message):
    with pytest.raises(DataError, match=message):
        vectors(array)


@pytest.mark.parametrize(("make", "message"), [(g1, "predicts 12720 entries"), (g2, "predicts 35778 entries")])
def test_a_network_for_another_resolution_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make(task(100))


def test_images_are_no_graphs():
    with pytest.raises(ValueError, match="the vector of its entries"):
        g1(Task("images", (1, 28, 28), 12720, "l1"))
