"""The policy refuses what is not allowed, in one line that says why and no number of the site's."""

import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from fedsmall.aggregation.sums import hidden_where_open
from fedsmall.clients.policy import Policy, load_policy
from fedsmall.errors import PolicyError
from fedsmall.methods import method
from fedsmall.parts import Privacy, Recipe
from fedsmall.plan import Method, Plan


def plan(rounds=10, privacy=None, name="FedDC"):
    return Plan(name="p", task="t", rounds=rounds, method=Method(name=name, privacy=privacy))


def check(policy, the_plan=None, *, task="heart_disease", samples=50, sites=4):
    policy.check_plan(the_plan or plan(), task, samples=samples, sites=sites)


def test_the_template_is_the_default_policy():
    from importlib.resources import files

    template = files("clients").joinpath("policy.toml")
    assert load_policy(template) == Policy()
    assert [key for key in Policy.model_fields if f"{key} = " not in template.read_text()] == []  # each says what it is


def test_what_is_allowed_passes():
    check(Policy(tasks=("heart_disease",), methods=("FedDC",), least_samples=50, least_sites=4, most_rounds=10))


@pytest.mark.parametrize(
    ("policy", "line"),
    [
        ({"tasks": ("other",)}, "task 'heart_disease' is not among those allowed here"),
        ({"methods": ("FedAvg",)}, "method 'FedDC' is not among those allowed here"),
        ({"least_samples": 51}, "fewer than the 51 samples"),
        ({"least_sites": 5}, "has 4 sites; the policy here asks for 5"),
        ({"most_rounds": 9}, "has 10 rounds; the policy here allows 9"),
        (
            {"most_exposure": 1.0},
            "limits how much of a record may be told (most_exposure); write privacy = {exposure",
        ),
        ({"clip": 1.0}, "demands clipping and noise; the plan has no privacy"),
        ({"noise": 0.5}, "demands clipping and noise; the plan has no privacy"),
        ({"budget": 1.0}, "demands clipping and noise; the plan has no privacy"),
    ],
)
def test_what_is_not_allowed_is_refused_in_one_line(policy, line):
    with pytest.raises(PolicyError) as refused:
        check(Policy(**policy))

    assert line in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "50" not in str(refused.value)  # the site's own count stays unsaid


@pytest.mark.parametrize(
    ("policy", "privacy", "line"),
    [
        ({"clip": 1.0}, Privacy(clip=2.0, noise=1.0), "clips at 2; the policy here demands 1 or less"),
        ({"noise": 1.0}, Privacy(clip=1.0, noise=0.5), "noise is 0.5; the policy here demands 1 or more"),
        ({"budget": 8.0}, Privacy(clip=1.0, noise=0.0), "without noise exceeds at once"),
    ],
)
def test_weaker_privacy_than_demanded_is_refused(policy, privacy, line):
    with pytest.raises(PolicyError, match=line):
        check(Policy(**policy), plan(privacy=privacy))
    check(Policy(clip=1.0, noise=1.0), plan(privacy=Privacy(clip=0.5, noise=2.0)))


def test_the_owner_says_which_devices_may_train():
    Policy().check_device("cuda:1")
    Policy(devices=("cpu", "cuda")).check_device("cuda:1")
    with pytest.raises(PolicyError, match=r'device "cuda:0" is not among those allowed here \(cpu, cuda:1\)'):
        Policy(devices=("cpu", "cuda:1")).check_device("cuda:0")


@pytest.mark.parametrize("epsilon", [8.1, float("inf"), float("nan")])
def test_a_spent_budget_stops_the_site(epsilon):
    with pytest.raises(PolicyError, match="budget of 8"):
        Policy(budget=8.0).check_budget(epsilon)
    Policy(budget=8.0).check_budget(8.0)
    Policy().check_budget(1e9)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("least_sample = 3", "'least_sample'.*known: tasks"),
        ("least_sites = 0", "'least_sites'"),
        ('devices = ["gpu"]', "'devices.0': value error, a device is"),
        ("tasks = [", "not TOML"),
        ("tasks = [\u201cmine\u201d]", "not TOML: .*write straight ones"),
        ("least_sites = 3\nleast_sites = 4", "not TOML: .*; what stands there is given twice: keep one"),
        ("least_sites = 3".encode("utf-16"), "not TOML: it is in UTF-16"),
        (None, "no policy file; without one this site allows nothing"),
        (Path.mkdir, "cannot be read: Is a directory"),
        (os.mkfifo, "cannot be read: it is a pipe"),
    ],
)
def test_a_policy_that_cannot_be_read_allows_nothing(tmp_path, text, line):
    path = tmp_path / "policy.toml"
    if callable(text):
        text(path)
    elif text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    with pytest.raises(PolicyError, match=line):
        load_policy(path)


@pytest.mark.parametrize(
    ("parts", "sites", "refused"),
    [
        ({}, 4, False),  # averages over all sites alone
        ({"permute_every": 1}, 4, True),
        ({"fraction": 0.5}, 4, True),  # averages over two of them
        ({"fraction": 0.5}, 6, False),
        ({"groups": 2}, 4, True),
        ({"groups": 2}, 6, False),
        ({"groups": "each"}, 40, True),
        ({"models": 1}, 40, True),
    ],
)
def test_an_average_over_too_few_counts_as_a_model_that_is_handed_on(parts, sites, refused):
    the_plan = Plan(name="p", task="t", method=Method(name="FedAvg", aggregate_every=1, **parts))

    if not refused:
        check(Policy(), the_plan, sites=sites)
        return
    with pytest.raises(PolicyError, match=r"write privacy = \{exposure = 1\.0\} under its method, or \{blur = 1\}"):
        check(Policy(), the_plan, sites=sites)
    with pytest.raises(PolicyError, match="lets no model be handed over"):
        check(Policy(permute=False), the_plan, sites=sites)


@pytest.mark.parametrize(
    ("policy", "batch", "samples", "line"),
    [
        ({"least_batch": 16}, 8, 100, "batches of 8; the policy here asks for 16"),
        ({"least_batch": 16}, None, 12, "a batch here would be smaller than the 16"),
        ({"least_batch": 16}, 16, 33, "a batch here would be smaller than the 16"),  # the last batch holds one patient
        ({"least_batch": 16}, 32, 48, None),
        ({"least_batch": 16}, 64, 20, None),
        ({"least_batch": 1}, 1, 9, None),
        ({}, 1, 9, "batches of 1; the policy here asks for 8"),
    ],
)
def test_small_batches_are_refused_the_last_of_an_epoch_too(policy, batch, samples, line):
    averaging = plan(name="FedAvg").model_copy(update={"recipe": Recipe(batch=batch, local_epochs=1)})

    if line is None:
        Policy(**policy).check_plan(averaging, "t", samples=samples, sites=3)
        return
    with pytest.raises(PolicyError, match=line) as told:
        Policy(**policy).check_plan(averaging, "t", samples=samples, sites=3)
    assert str(samples) not in str(told.value)


@pytest.mark.parametrize("samples", range(8, 100))
def test_even_batches_of_twice_the_least_are_let_in_whatever_a_hospital_has(samples):
    recipe = Recipe(batch=15, even_batches=True, local_epochs=1)
    averaging = plan(name="FedAvg").model_copy(update={"recipe": recipe})

    Policy().check_plan(averaging, "t", samples=samples, sites=3)


def test_a_round_that_would_have_the_sites_memory_is_refused():
    for recipe, refused in (
        (Recipe(local_steps=1_000_000), True),
        (Recipe(local_epochs=1_000_000, batch=8), True),
        (Recipe(local_steps=1_000_000, batch=8), False),
    ):
        averaging = plan(name="FedAvg").model_copy(update={"recipe": recipe})
        with pytest.raises(PolicyError, match="a round would draw more than") if refused else nullcontext():
            Policy().check_plan(averaging, "t", samples=800, sites=3)


def test_a_step_that_never_comes_is_not_asked_for():
    for steps, refused in ((2, False), (3, True)):  # 33 samples in batches of 16: the third holds one patient
        averaging = plan(name="FedAvg").model_copy(update={"recipe": Recipe(batch=16, local_steps=steps)})
        with pytest.raises(PolicyError, match="with even_batches = true") if refused else nullcontext():
            Policy().check_plan(averaging, "t", samples=33, sites=3)


def test_a_regression_takes_all_samples_at_once_whatever_batch_the_scenario_has():
    summed = plan(name="Ridge").model_copy(
        update={"recipe": Recipe(batch=1), "method": method("Ridge", privacy=Privacy(secure=True))}
    )

    Policy().check_plan(summed, "t", samples=9, sites=3, has_identity=True)


def test_a_site_may_forbid_that_its_models_are_handed_on():
    blurred = plan(privacy=Privacy(blur=5.0))
    handing_on = blurred.model_copy(update={"method": blurred.method.model_copy(update={"permute_every": 1})})

    with pytest.raises(PolicyError, match="no model be handed over"):
        check(Policy(permute=False), handing_on)
    check(Policy(), handing_on)
    check(Policy(permute=False), blurred)


ENVELOPES = {
    "open hops": ({"sealed": True}, {"blur": 1}, "lets models be handed over encrypted only"),
    "sealed hops": ({"sealed": True}, {"blur": 1, "sealed": True}, ""),
    "open sums": ({"secure": True}, {"blur": 1, "sealed": True}, "lets a server learn of averages the sum alone"),
    "secure sums": ({"secure": True}, {"blur": 1, "sealed": True, "secure": True}, ""),
}


@pytest.mark.parametrize("case", ENVELOPES)
def test_a_policy_may_ask_for_envelopes_and_secure_sums(case):
    asked, privacy, words = ENVELOPES[case]
    method = Method(name="FedDC", permute_every=1, aggregate_every=5, privacy=Privacy(**privacy))
    policy = Policy(**asked)

    def check():
        policy.check_plan(Plan(name="x", task="digits", method=method), "digits", samples=50, sites=5)

    if not words:
        return check()
    with pytest.raises(PolicyError, match=words):
        check()


NOISED = {"level": "patient", "clip": 4.0, "epsilon": 1.0, "lot": 10**9}  # as a server sends it
OPEN_OR_SECURE = ({}, {"privacy": {"secure": True}}, {"privacy": NOISED})


@pytest.mark.parametrize("name", ["FedXGBBagging", "FedXGBCyclic"])
def test_trees_that_a_site_grows_alone_go_to_others_only_where_the_policy_says_so(name):
    asked = Plan(name="p", task="t", rounds=10, method=method(name))

    check(Policy(least_blur=0), asked, sites=40)
    with pytest.raises(
        PolicyError, match="trees of single sites, or sums of too few, go to others, and no noise hides"
    ):
        check(Policy(), asked, sites=40)


def test_sums_of_one_site_s_patients_are_read_only_where_the_policy_says_so():
    open_sums, secure, noised = (
        Plan(name="p", task="t", rounds=10, method=method("Ridge", **more)) for more in OPEN_OR_SECURE
    )

    check(Policy(), secure, sites=40)
    check(Policy(), noised, sites=40)
    check(Policy(least_blur=0), open_sums, sites=40)
    with pytest.raises(PolicyError, match="can be solved for single patients"):
        check(Policy(), open_sums, sites=40)


def test_what_a_site_counts_for_trees_is_read_only_where_the_policy_says_so():
    """In the first round it counts the values of every column in narrow cells."""
    bare, secure = (
        Plan(name="p", task="t", rounds=10, method=method("FedHistogramXGB", **more))
        for more in ({}, {"privacy": Privacy(secure=True)})
    )

    check(Policy(), secure, sites=40)
    check(Policy(least_blur=0), bare, sites=40)
    check(Policy(), hidden_where_open(bare, 40), sites=40)
    with pytest.raises(PolicyError, match="for trees, can be solved for single patients"):
        check(Policy(), bare, sites=40)


def test_a_limit_of_exposure_takes_as_much_or_less_or_privacy_for_patients():
    policy = Policy(most_exposure=1.0, least_batch=1)

    check(policy, plan(privacy=Privacy(exposure=1.0)))
    check(policy, plan(privacy=Privacy(level="patient", clip=1.0, epsilon=3.0, lot=8)))
    for hidden in ({}, {"sealed": True}, {"sealed": True, "secure": True}):
        with pytest.raises(PolicyError, match="most_exposure"):
            check(policy, plan(privacy=Privacy(exposure=1.1, **hidden)))
    for hidden in ({"sealed": True}, {"sealed": True, "secure": True}):  # who opens a sum reads what is in it
        with pytest.raises(PolicyError, match="most_exposure"):
            check(policy, plan(privacy=Privacy(**hidden)))
        check(policy, plan(privacy=Privacy(exposure=1.0, **hidden)))
    with pytest.raises(PolicyError, match="most_exposure"):
        check(policy, plan(privacy=Privacy(blur=8.0)))
