import json
from concurrent.futures import ThreadPoolExecutor
from inspect import signature

import numpy as np
import pytest
import torch
from torch import nn

from fedsmall.data.federation import Task
from fedsmall.errors import PlanError
from fedsmall.models.registry import MODELS, build_model, initial_model
from fedsmall.parts import NORMED
from fedsmall.plan import Method, Plan
from fedsmall.randomness import rng_for

GREY = Task("xray", (1, 28, 28), 2)
TABLE = Task("table", (30,), 2)
COLOUR = Task("cifar10", (3, 32, 32), 10)


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def plan(**settings) -> Plan:
    return Plan(name="t", task="breast_cancer", sites=2, method=Method(name="FedAvg"), **settings)


@pytest.mark.parametrize(
    ("name", "task", "options", "count"),
    [
        ("resnet10", GREY, {}, 4_900_546),  # RepTreeFL's model, by hand: sum of the layers' shapes
        ("resnet18", Task("imagenet", (3, 224, 224), 1000), {"stem": "imagenet"}, 11_689_512),  # torchvision's table
        ("resnet18", COLOUR, {}, 11_173_962),  # the usual CIFAR variant
        ("cnn", GREY, {}, 1 * 9 * 32 + 32 + 64 + 32 * 9 * 64 + 64 + 128 + 64 * 49 * 2 + 2),
        ("mlp", Task("synthetic", (100,), 2), {}, 6_112),  # workload A of the engine
        ("linear", Task("susy", (18,), 2, loss="hinge"), {}, 19),
        ("linear", TABLE, {}, 62),
    ],
)
def test_models_have_the_parameters_their_papers_name(name, task, options, count):
    assert parameters(build_model(name, task, options, rng_for(0, "t"))) == count


@pytest.mark.parametrize("name", ["linear", "mlp", "cnn", "resnet10", "resnet18", "resnet_small"])
@pytest.mark.parametrize("samples", [1, 2, 3])
def test_every_model_trains_on_one_two_and_three_samples(name, samples):
    model = build_model(name, GREY, {}, rng_for(0, "t"))

    loss = model(torch.zeros(samples, 1, 28, 28)).square().sum()
    loss.backward()

    assert torch.isfinite(loss)
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


def test_a_model_depends_on_its_stream_alone():
    torch.manual_seed(1)
    first = build_model("cnn", GREY, {"dropout": 0.5}, rng_for(0, "t")).state_dict()
    torch.manual_seed(2)
    before = torch.random.get_rng_state()
    second = build_model("cnn", GREY, {"dropout": 0.5}, rng_for(0, "t")).state_dict()

    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_models_that_are_drawn_at_the_same_time_are_those_drawn_alone():
    alone = {name: initial_model(plan(seed=name), TABLE) for name in range(40)}

    with ThreadPoolExecutor(8) as threads:
        together = dict(zip(alone, threads.map(lambda name: initial_model(plan(seed=name), TABLE), alone), strict=True))

    for name, model in alone.items():
        assert all(np.array_equal(together[name][key], array) for key, array in model.items())


def test_common_models_are_one_model_and_independent_ones_are_not():
    common, own = plan(), plan(initial_models="independent")

    start = initial_model(common, TABLE, None)

    assert all(np.array_equal(start[name], array) for name, array in initial_model(common, TABLE, "b").items())
    assert not np.array_equal(initial_model(own, TABLE, "a")["0.weight"], initial_model(own, TABLE, "b")["0.weight"])
    assert np.array_equal(initial_model(own, TABLE, None)["0.weight"], start["0.weight"])


def test_initial_models_have_the_order_of_state_dict_and_the_dtype_of_the_plan():
    batch = {"norm": "batch"}
    wide = initial_model(plan(model="cnn", model_options=batch, dtype="float64"), GREY, None)
    narrow = initial_model(plan(model="cnn", model_options=batch), GREY, None)

    assert list(wide) == list(build_model("cnn", GREY, batch, rng_for(0, "t")).state_dict())
    assert wide["0.weight"].dtype == np.float64
    assert wide["1.num_batches_tracked"].dtype == np.int64
    assert np.array_equal(wide["0.weight"], narrow["0.weight"])


def test_a_single_value_is_normalised_with_the_running_statistics_and_counted_nowhere():
    model = build_model("resnet10", GREY, {"norm": "batch"}, rng_for(0, "t"))
    last = model.get_submodule("layer4.0.bn2")
    last.running_mean.fill_(3.0)

    model(torch.zeros(1, 1, 28, 28))

    assert torch.equal(last.running_mean, torch.full((512,), 3.0))
    with pytest.raises(ValueError, match="more than 1 value"):
        nn.BatchNorm2d(512)(torch.zeros(1, 512, 1, 1))


def test_batch_normalisation_is_torchs_own_where_there_is_spread():
    ours = build_model("cnn", GREY, {"norm": "batch"}, rng_for(0, "t"))[1]
    theirs = nn.BatchNorm2d(32)
    x = torch.randn(1, 32, 2, 1, generator=torch.Generator().manual_seed(0))

    assert torch.equal(ours(x), theirs(x))
    assert torch.equal(ours.running_var, theirs.running_var)
    assert ours.num_batches_tracked == 1


def own(task, width=3):
    return nn.Sequential(nn.Linear(task.input_shape[0], width), nn.BatchNorm1d(width), nn.Linear(width, task.outputs))


def test_a_model_of_ones_own_is_built_by_its_name_and_stands_one_sample():
    model = build_model(f"{__name__}:own", TABLE, {"width": 5}, rng_for(0, "t"))

    assert model(torch.zeros(1, 30)).shape == (1, 2)
    assert parameters(model) == 30 * 5 + 5 + 10 + 12


@pytest.mark.parametrize("name", sorted(NORMED))
def test_images_are_normalised_in_groups_which_have_no_running_statistics(name):
    model = build_model(name, GREY, {}, rng_for(0, "t"))

    assert any(isinstance(module, nn.GroupNorm) for module in model.modules())
    assert not [array for array in model.state_dict() if "running" in array]


def test_every_model_that_has_a_norm_is_recorded_with_it_but_the_one_whose_default_never_changed():
    takes = {name for name, builder in MODELS.items() if "norm" in signature(builder).parameters}

    assert takes - {"cnn3d"} <= NORMED < set(MODELS)


@pytest.mark.parametrize(
    ("model", "options", "read"),
    [
        ("resnet18", {"stem": "cifar"}, {"norm": "batch", "stem": "cifar"}),
        ("fedsmall.small_maps:resnet10", {}, {"norm": "batch"}),
        ("cnn", {"norm": "group"}, {"norm": "group"}),
        ("mlp", {"hidden": [3]}, {"hidden": [3]}),
        ("shared_part", {"sites": ["cnn", "g1"]}, {"sites": [{"norm": "batch", "name": "cnn"}, "g1"]}),
    ],
)
def test_a_plan_that_was_kept_without_a_norm_is_of_the_release_whose_default_was_batch(model, options, read):
    kept = json.loads(plan(model=model).model_dump_json()) | {"model_options": options}

    assert Plan.model_validate_json(json.dumps(kept)).model_options == read


def test_a_plan_made_today_names_its_norm_and_is_read_as_it_was_made():
    made = plan(model="cnn")

    assert made.model_options == {"norm": "group"}
    assert Plan.model_validate_json(made.model_dump_json()) == made


@pytest.mark.parametrize(
    ("name", "task", "options", "words"),
    [
        ("mpl", TABLE, {}, "Did you mean 'mlp'"),
        ("nothing", TABLE, {}, "Known: linear"),
        ("mlp", TABLE, {"hiden": [3]}, "no option 'hiden'. Did you mean 'hidden'"),
        ("mlp", TABLE, {"hidden": [3, 0]}, r"at least 1, as in .*; got \[3, 0\]"),
        ("linear", TABLE, {"hidden": [3]}, "It has none"),
        ("cnn", TABLE, {}, "takes images"),
        ("cnn", Task("dots", (1, 3, 3), 2), {}, "at least 4 x 4"),
        ("cnn", GREY, {"norm": "layer"}, '"batch", or|"batch" or "group"'),
        ("resnet10", GREY, {"stem": "tall"}, 'stem is "imagenet" or "cifar"'),
        ("no.such:thing", TABLE, {}, "written as module:function"),
        ("fedsmall.models.networks:HIDDEN", TABLE, {}, "not a function"),
    ],
)
def test_a_model_that_cannot_be_built_says_why(name, task, options, words):
    with pytest.raises(PlanError, match=words):
        build_model(name, task, options, rng_for(0, "t"))


@pytest.mark.thorough
def test_resnet18_is_torchvisions_weight_for_weight():
    from fedsmall.data.sources.public import import_torchvision

    pytest.importorskip("PIL")
    import_torchvision()
    from torchvision.models import resnet18

    ours = build_model(
        "resnet18", Task("imagenet", (3, 64, 64), 1000), {"stem": "imagenet", "norm": "batch"}, rng_for(0, "t")
    ).eval()
    theirs = resnet18(weights=None).eval()
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))

    theirs.load_state_dict(ours.state_dict())

    assert torch.equal(ours(x), theirs(x))
