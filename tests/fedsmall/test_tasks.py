import numpy as np
import pytest

from fedsmall.plan import Method, Plan
from fedsmall.tasks import build_federation


def plan(task="breast_cancer", **settings) -> Plan:
    settings = {"sites": 4, "samples_per_site": 5} | settings
    return Plan(name="t", task=task, method=Method(name="FedAvg"), **settings)


@pytest.mark.parametrize("task", ["breast_cancer", "digits", "synthetic"])
@pytest.mark.parametrize("samples", [1, 2, 3])
def test_every_site_has_exactly_the_samples_asked_for(task, samples):
    federation = build_federation(plan(task, samples_per_site=samples, sites=12))

    assert [len(site) for site in federation.train] == [samples] * 12
    assert federation.names == tuple(sorted(federation.names))
    assert all(site.x.shape[1:] == federation.task.input_shape for site in federation.train)
    assert all(np.isfinite(site.x).all() for site in federation.train)


@pytest.mark.parametrize("task", ["breast_cancer", "digits", "synthetic"])
def test_a_federation_is_built_to_the_same_bits_whatever_the_global_generators_say(task):
    np.random.seed(1)  # noqa: NPY002
    first = build_federation(plan(task))
    np.random.seed(2)  # noqa: NPY002
    second = build_federation(plan(task))

    for one, other in zip((*first.train, first.test), (*second.train, second.test), strict=True):
        assert one.x.tobytes() == other.x.tobytes()
        assert one.y.tobytes() == other.y.tobytes()


def test_the_synthetic_task_is_the_papers():
    federation = build_federation(plan("synthetic", sites=8, samples_per_site=100))

    assert (len(federation.test), federation.task.input_shape, federation.task.classes) == (400, (100,), 2)
