"""Convolutions without the taps that only meet padding give the numbers of those with them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedsmall.data.federation import Task
from fedsmall.models.networks import MatrixConv2d, ResNet, cropped, reach, resnet10_cropped

TASK = Task("images", (1, 28, 28), 2)


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 2), st.integers(0, 2))
def test_a_tap_is_kept_if_its_gradient_can_be_other_than_zero(size, kernel, stride, padding):
    if size + 2 * padding < kernel or padding >= kernel:
        return
    layer = nn.Conv1d(1, 1, kernel, stride, padding)
    layer(torch.rand(1, 1, size) + 1).sum().backward()

    met = layer.weight.grad[0, 0].nonzero().flatten().tolist()

    side = reach(size, kernel, stride, padding)
    assert list(range(side.first, side.end)) == list(range(met[0], met[-1] + 1))


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 5), st.sampled_from([1, 3, 7]), st.integers(1, 2), st.booleans())
def test_a_cropped_layer_gives_the_same_outputs_and_gradients(size, kernel, stride, bias):
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Conv2d(3, 4, kernel, stride, kernel // 2, bias=bias)).double()
    small = cropped(nn.Sequential(nn.Conv2d(3, 4, kernel, stride, kernel // 2, bias=bias)), (3, size, size)).double()
    first, end = (side := reach(size, kernel, stride, kernel // 2)).first, side.end
    if side.before != side.after:
        first, end = 0, kernel
    small[0].weight.data.copy_(whole[0].weight.data[:, :, first:end, first:end])
    if bias:
        small[0].bias.data.copy_(whole[0].bias.data)
    x = torch.rand(2, 3, size, size, dtype=torch.float64, requires_grad=True)

    outputs = [model(x) for model in (whole, small)]
    slopes = [torch.autograd.grad((y**2).sum(), (x, m[0].weight)) for y, m in zip(outputs, (whole, small), strict=True)]

    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(slopes[0][0], slopes[1][0])
    torch.testing.assert_close(slopes[0][1][:, :, first:end, first:end], slopes[1][1])
    assert slopes[0][1].abs().sum() == pytest.approx(float(slopes[1][1].abs().sum()))


def test_resnet10_on_small_images_trains_to_the_same_numbers_without_56_percent_of_its_parameters():
    torch.manual_seed(0)
    whole = ResNet(1, 2, blocks=1).double()
    torch.manual_seed(0)
    small = cropped(ResNet(1, 2, blocks=1), (1, 28, 28)).double()
    x, y = torch.rand(6, 1, 28, 28, dtype=torch.float64), torch.tensor([0, 1, 0, 1, 1, 0])

    for model in (whole, small):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

    sizes = [sum(p.numel() for p in model.parameters()) for model in (whole, small)]
    assert sizes[0] == 4_900_546
    assert 0.55 < 1 - sizes[1] / sizes[0] < 0.57
    torch.testing.assert_close(whole.eval()(x), small.eval()(x), rtol=1e-9, atol=1e-9)
    assert list(whole.state_dict()) == list(small.state_dict())


def test_taps_that_are_cut_off_would_have_stayed_as_they_were():
    torch.manual_seed(0)
    whole = ResNet(1, 2, blocks=1)
    before = whole.layer4[0].conv2.weight.detach().clone()

    nn.functional.cross_entropy(whole(torch.rand(4, 1, 28, 28)), torch.tensor([0, 1, 0, 1])).backward()

    gradient = whole.layer4[0].conv2.weight.grad
    assert gradient[:, :, 1, 1].abs().sum() > 0
    assert (gradient.flatten(2)[:, :, [0, 1, 2, 3, 5, 6, 7, 8]] == 0).all()
    assert before.shape == (512, 512, 3, 3)


def test_the_model_by_name_is_cropped_and_multiplies_matrices_where_maps_are_small():
    model = resnet10_cropped(TASK)

    assert model.layer4[0].conv2.kernel_size == (1, 1)
    assert type(model.layer4[0].conv2) is MatrixConv2d
    assert type(model.layer1[0].conv1) is nn.Conv2d


def test_large_maps_are_left_alone():
    model = cropped(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1)), (8, 16, 16))

    assert type(model[0]) is nn.Conv2d
    assert model[0].kernel_size == (3, 3)
