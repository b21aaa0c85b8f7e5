import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedsmall.data.splits import iid, partition, skewed_sizes
from fedsmall.errors import PlanError
from fedsmall.randomness import rng_for

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(5), [90, 70, 60, 50, 30]))  # 300 samples
SPECS = ["iid", {"classes_per_site": 2}, {"dirichlet": 0.3}, {"dirichlet": 100}, {"sizes": "equal"}]


@pytest.mark.parametrize("spec", SPECS, ids=str)
@given(sites=st.integers(1, 20), per_site=st.integers(1, 8), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_every_site_gets_exactly_what_is_asked_and_no_sample_goes_to_two(spec, sites, per_site, seed):
    shares = partition(LABELS, spec, sites, per_site, rng_for(seed, "t"))

    assert [len(share) for share in shares] == [per_site] * sites
    assert len(np.unique(np.concatenate(shares))) == sites * per_site


@pytest.mark.parametrize("spec", [*SPECS, {"sizes": "skewed"}], ids=str)
@pytest.mark.parametrize("per_site", [None, 4])
def test_a_partition_depends_on_its_stream_alone(spec, per_site):
    first = partition(LABELS, spec, 10, per_site, rng_for(3, "t"))
    np.random.seed(5)  # noqa: NPY002
    again = partition(LABELS, spec, 10, per_site, rng_for(3, "t"))
    other = partition(LABELS, spec, 10, per_site, rng_for(4, "t"))

    assert all(np.array_equal(one, two) for one, two in zip(first, again, strict=True))
    assert any(not np.array_equal(one, two) for one, two in zip(first, other, strict=True))


@given(classes=st.integers(1, 5), per_site=st.integers(1, 6), seed=st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_a_site_holds_the_number_of_classes_asked_in_equal_parts(classes, per_site, seed):
    shares = partition(LABELS, {"classes_per_site": classes}, 12, per_site, rng_for(seed, "t"))

    for share in shares:
        _, counts = np.unique(LABELS[share], return_counts=True)
        assert len(counts) == min(classes, per_site)
        assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("spec", ["iid", {"classes_per_site": 3}, {"dirichlet": 1.0}, {"sizes": "skewed"}], ids=str)
def test_without_a_number_every_sample_is_dealt_once(spec):
    shares = partition(LABELS, spec, 10, None, rng_for(0, "t"))

    assert np.array_equal(np.sort(np.concatenate(shares)), np.arange(300))
    assert min(len(share) for share in shares) >= 1


def test_iid_shares_are_those_of_flower_over_the_shuffled_samples():
    datasets = pytest.importorskip("datasets")
    from flwr_datasets.partitioner import IidPartitioner

    flower = IidPartitioner(7)
    flower.dataset = datasets.Dataset.from_dict({"row": rng_for(0, "t").permutation(300)})

    shares = iid(300, 7, None, rng_for(0, "t"))

    assert [share.tolist() for share in shares] == [list(flower.load_partition(site)["row"]) for site in range(7)]


def test_a_small_alpha_makes_sites_differ_and_a_large_one_makes_them_alike():
    def largest_class(alpha):
        shares = partition(LABELS, {"dirichlet": alpha}, 15, 20, rng_for(0, "t"))
        return np.mean([np.bincount(LABELS[share]).max() / 20 for share in shares])

    assert largest_class(0.1) > 0.7
    assert largest_class(1000.0) < 0.5


def test_class_shares_follow_their_dirichlet_in_the_mean():
    shares = [partition(LABELS, {"dirichlet": 1.0}, 1, 10, rng_for(seed, "t"))[0] for seed in range(800)]

    mean = np.bincount(LABELS[np.concatenate(shares)], minlength=5) / 8000

    # a class's share varies between sites by at most .35, so its mean over 800 of them by .0125
    np.testing.assert_allclose(mean, np.array([90, 70, 60, 50, 30]) / 300, atol=0.05)


@given(total=st.integers(1, 500), sites=st.integers(1, 60))
def test_skewed_sizes_fall_and_sum_to_the_total(total, sites):
    assume(sites <= total)

    sizes = skewed_sizes(total, sites)

    assert sum(sizes) == total
    assert min(sizes) >= 1
    assert sizes == sorted(sizes, reverse=True)


def test_given_sizes_are_kept():
    shares = partition(LABELS, {"sizes": [3, 1, 5]}, None, None, rng_for(0, "t"))

    assert [len(share) for share in shares] == [3, 1, 5]
    assert len(np.unique(np.concatenate(shares))) == 9


@pytest.mark.parametrize(
    ("spec", "sites", "per_site", "words"),
    [
        ("iid", 31, 10, "ask for 310 training samples and there are 300"),
        ({"sizes": [200, 101]}, None, None, "ask for 301 training samples and there are 300"),
        ("iid", 301, None, "ask for 301 training samples and there are 300"),
        ("iid", None, 3, "say how many there are"),
        ("idd", 3, 3, "Did you mean 'iid'"),
        ({"dirichlett": 3}, 3, 3, "Did you mean 'dirichlet'"),
        ("dirichlet", 3, 3, "needs a value, as in {dirichlet = 0.3}"),
        ({"dirichlet": 0}, 3, 3, "number above 0"),
        ({"dirichlet": 0}, 3, None, "number above 0"),
        ({"classes_per_site": 6}, 3, 3, "from 1 to the task's 5 classes; not 6"),
        ({"classes_per_site": 0}, 3, None, "from 1 to the task's 5 classes; not 0"),
        ({"classes_per_site": 5}, 30, 10, "5 classes at every site cannot be had"),
        ({"sizes": [3, 0]}, None, None, "whole numbers of at least 1"),
        ({"sizes": "odd"}, 3, 3, "not 'odd'"),
        ({"sizes": [3, 3]}, 3, None, "for 2 sites and sites = 3"),
        ({"natural": "ward"}, 3, 3, "no sites by 'ward'"),
        ({"iid": 1, "dirichlet": 1}, 3, 3, "this one names 2"),
    ],
)
def test_a_partition_that_cannot_be_had_says_why(spec, sites, per_site, words):
    with pytest.raises(PlanError, match=words):
        partition(LABELS, spec, sites, per_site, rng_for(0, "t"))


def test_targets_without_classes_are_dealt_at_random_only():
    graphs = np.zeros((20, 3))

    assert len(partition(graphs, "iid", 4, 5, rng_for(0, "t"))) == 4
    with pytest.raises(PlanError, match="this task has none"):
        partition(graphs, {"dirichlet": 1.0}, 4, 5, rng_for(0, "t"))
