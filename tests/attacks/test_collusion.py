"""What a server computes from masked summands, alone and with helpers: noise, until all of them give it their keys."""

from collections.abc import Iterable

import numpy as np
import pytest

from fedsmall.aggregation.sums import SCALE
from fedsmall.audit_log import digest_of
from fedsmall.clients.letters import KeyStore
from fedsmall.clients.runs import RUNS, own_folder
from fedsmall.clients.shelf import secret
from fedsmall.sealing.letters import IDENTITY, Transcript, after
from fedsmall.sealing.masks import total, unmasked
from fedsmall.sealing.routing import RoutingTable
from fedsmall.sealing.terms import HELP, KEY, SEALED, Average, Order
from fedsmall.wire import MODEL, ROUND, Arrays, join, split
from tests.attacks.world import NAMES, Heard, World

LIKE = 0.05  # correlation; of 17 thousand numbers chance makes .008
Summands = dict[str, Heard]  # what each site answered to an order of one round


def flat(model: Arrays) -> np.ndarray:
    return np.concatenate([model[name].ravel() for name in sorted(model)]).astype(np.float64)


def numbers(of: np.ndarray) -> np.ndarray:
    """What stands in a sum, were it one of models."""
    return of.view(np.int64).astype(np.float64) / SCALE


def like_a_model(world: World, computed: np.ndarray) -> float:
    """The largest correlation of what was computed with what any site has ever trained, or moved."""
    known = [model for each in world.trained for model in (flat(each.model), flat(each.model) - flat(each.received))]
    return max(abs(np.corrcoef(numbers(computed), model)[0, 1]) for model in known)


def masked(summands: Summands, site: str) -> np.ndarray:
    return summands[site].sent["arrays/masked"]


def first(world: World) -> Summands:
    return {site: world.once("train", site, 1) for site in world.federation.names}


def helpers(world: World, t: int) -> list[str]:
    return RoutingTable(world.plan, world.federation.names).helpers(t)


def question(helper: str, sites: Iterable[str], summands: Summands) -> Heard:
    """What a server asks of a helper, that it may open the sum of these sites."""
    letters = {site: summands[site].sent[f"seeds/{helper}"] for site in sites}
    return summands[helper]._replace(kind=HELP, arrays=join(seeds=letters))


def told(world: World, helper: str, sites: Iterable[str], summands: Summands) -> np.ndarray:
    header, sent = world.ask(question(helper, sites, summands))
    assert header["config"] == {}
    return sent["sum/sum"]


def desk_of(world: World, site: str) -> KeyStore:
    """The store of a site that gives all it has to the server."""
    home = world.federation.folder / site
    return KeyStore(own_folder(home / RUNS, "trial", "0123"), site, "trial 0123", secret(home / IDENTITY))


def without_streams_of(world: World, traitors: Iterable[str], summands: Summands, site: str) -> np.ndarray:
    """A site's summand less the streams of helpers who opened its letters for the server."""
    seeds = []
    for helper in traitors:
        session = desk_of(world, helper).open(world.plan, summands[helper].told)
        letter = summands[site].sent[f"seeds/{helper}"].tobytes()
        seeds.append(session.mailbox.open(KEY, 1, site, session.transcript.before(1), letter))
    hidden = masked(summands, site)
    return hidden - total(seeds, len(hidden))


def test_a_masked_summand_is_noise(unopened):
    summands = first(unopened)

    for site in NAMES:
        assert like_a_model(unopened, masked(summands, site)) < LIKE


def test_different_sets_for_different_helpers_open_nothing(unopened):
    summands, (a, b, c) = first(unopened), helpers(unopened, 1)
    few = {a: NAMES, b: NAMES[1:], c: NAMES[:-1]}
    streams = {helper: told(unopened, helper, few[helper], summands) for helper in few}

    for sites in (NAMES, NAMES[1:], NAMES[:-1], NAMES[1:-1], NAMES[:1], NAMES[-1:]):
        opened = unmasked([masked(summands, site) for site in sites], streams.values())
        assert like_a_model(unopened, opened) < LIKE
    for helper in (b, c):
        unopened.refuses(
            question(helper, NAMES, summands), "this site has helped to open the sum of round 1 before, of other sites"
        )
    for site in NAMES:  # a late summand, with all that was ever told
        for stream in streams.values():
            assert like_a_model(unopened, masked(summands, site) - stream) < LIKE


def test_two_of_three_helpers_and_the_server_have_noise(unopened):
    summands, three = first(unopened), helpers(unopened, 1)

    for left in three:
        traitors = [helper for helper in three if helper != left]
        for site in NAMES:
            assert like_a_model(unopened, without_streams_of(unopened, traitors, summands, site)) < LIKE


def test_all_helpers_and_the_server_have_every_model(unopened):
    """A limit, and the proof that the measure of the tests beside it sees a model where there is one."""
    summands, three = first(unopened), helpers(unopened, 1)

    for site in NAMES:
        computed = without_streams_of(unopened, three, summands, site)
        model = next(each.model for each in unopened.trained if (each.site, each.t) == (site, 1))
        assert like_a_model(unopened, computed) > 0.999
        np.testing.assert_array_equal(numbers(computed), np.rint(flat(model) * SCALE) / SCALE)


def test_the_same_common_model_twice_gives_one_site_by_subtraction(unopened):
    """A limit: whoever makes up common models has two sums of one update, and what a site adds is their difference.

    No site can tell a made-up average from a true one; noise for each patient is what helps.
    """
    model = split(first(unopened)["site-000"].arrays, MODEL)
    all_of_them = summed(unopened, 2, NAMES, model)
    but_one = summed(unopened, 3, NAMES[1:], model)

    difference = numbers(all_of_them - but_one)

    trained = next(each.model for each in unopened.trained if (each.site, each.t) == ("site-000", 2))
    np.testing.assert_allclose(difference, flat(trained), atol=1e-5)


def summed(world: World, t: int, sites: Iterable[str], model: Arrays) -> np.ndarray:
    """The sum of what these sites train of a model that a server says is the average before round ``t``."""
    begun = desk_of(world, "site-000").open(world.plan, first(world)["site-000"].told).transcript.at[0]
    thread, said = Transcript({0: begun}), digest_of(model)
    for last in range(1, t):
        average = Average(t=last, before=(before := thread.at[last - 1]), commons=(said,))
        thread.at[last] = after(before, last, (said,))
    words = Order(average=average, nonces=first(world)["site-000"].told.nonces).model_dump_json(exclude_defaults=True)
    summands = {}
    for site, order in first(world).items():
        order = order._replace(arrays=join(arrays=model)).but(**{ROUND: t, SEALED: words})
        with pytest.MonkeyPatch.context() as patch:
            world.watch(patch)
            header, sent = world.ask(order)
        assert "error" not in header, header
        summands[site] = order._replace(header=header, sent=sent)
    streams = [told(world, helper, sites, summands) for helper in helpers(world, t)]
    return unmasked([masked(summands, site) for site in sites], streams)
