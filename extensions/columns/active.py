"""The party that has the labels. Source: Cheng et al. 2021, algorithms 1 and 2; Chen et al. 2021 (SecureBoost+)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedsmall.errors import ReplyError
from fedsmall.extensions.columns import boosting
from fedsmall.extensions.columns.boosting import Node, Objective, Split, Sums, Tree
from fedsmall.extensions.columns.encrypted import Layout, PrivateKey, two_primes
from fedsmall.extensions.columns.messages import Message, Talk
from fedsmall.extensions.columns.party import Clock, Handler, Party, Table, records_of
from fedsmall.extensions.columns.plan import LEAST_BITS, Boosting, Reading, competing_parties
from fedsmall.randomness import rng_for

Choice = tuple[str, int, int]  # the party, and the place among its candidates; of the active party's, column and bin


@dataclass
class TreeData:
    """What a forest's trees are grown with; ``names`` are the active party, then others, ``sums_read`` a count."""

    names: tuple[str, ...]
    settings: Boosting
    key: PrivateKey
    objective: Objective
    records: list[Split]
    clock: Clock
    cuts: list[np.ndarray]
    bins: np.ndarray
    sums_read: int = 0


@dataclass
class ActiveParty(Party):
    """The party with labels: ``target`` (rows,) of class numbers, or numbers (``classes`` 0); or it ``grows`` none."""

    target: np.ndarray = field(default_factory=lambda: np.zeros(0))
    classes: int = 2
    class_names: tuple[str, ...] = ()
    key_bits: int = LEAST_BITS
    grows: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.trees: list[Tree] = []
        self.objective: Objective | None = None
        self.data: TreeData | None = None
        self._talk: Talk[dict[str, float]] | None = None
        self._opening: Message | None = None  # by which the talk was begun
        self._addressees: list[str] = []
        self._round = 0
        self._scores: np.ndarray | None = None  # of the rows that are trained on, before the round that is grown
        self._between_rounds = False
        self.predicted: np.ndarray | None = None  # of all common patients, (rows, outputs)

    def part(self) -> dict[str, Any]:
        """What this party keeps of a forest: trees, in which others' splits are numbers."""
        assert self.objective is not None
        loss, trees = self.objective, [[tree.output, [list(node) for node in tree.nodes]] for tree in self.trees]
        names = list(self.class_names) or [str(k) for k in range(self.classes)]
        forest = {"trees": trees, "classes": names, "prior": loss.prior.tolist()}
        return {**super().part(), **forest, "centre": loss.centre, "spread": loss.spread}

    @staticmethod
    def from_part(name: str, table: Table, part: Mapping[str, Any], **more: Any) -> "ActiveParty":
        """The party with what it kept of a forest, and a table of other patients; ``more`` as in :class:`Party`."""
        names = tuple(part["classes"])
        party = ActiveParty(name, table, records_of(part), classes=len(names), class_names=names, grows=False, **more)
        party.trees = _trees_of(part["trees"])
        prior = np.array(part["prior"], float)
        party.objective = boosting.stored_objective(len(names), prior, part["centre"], part["spread"])
        return party

    def handlers(self) -> Mapping[str, Handler]:
        """What this party answers, by kind: where it cannot call on others, it is led from message to message."""
        first = {"grow": self._grow} if self.grows else {"predict": self._predict}
        return {**super().handlers(), **first, "go on": self._go_on}

    def _grow(self, message: Message) -> Message:
        self._check_first(message)
        self._opening, self._scores = message, None
        return self._begin(message)

    def _predict(self, message: Message) -> Message:
        """Begin to ask the forest about all common patients; what it says stays here."""

        def predict_all() -> Talk[dict[str, float]]:
            self.predicted = yield from self.scores(np.arange(len(self.matched_rows)))
            return {}

        self._check_first(message)
        self._opening, self._talk = message, predict_all()
        return self._step(message, None)

    def _check_first(self, message: Message) -> None:
        if self.parties and self._opening is not None:
            raise ReplyError("a second forest was begun in one run")
        if self.parties and tuple(message.words["passives"]) != self.parties[1:]:
            raise ReplyError("a forest was begun with other parties than those of this run")

    def _begin(self, message: Message) -> Message:
        settings = Boosting.model_validate(message.words["settings"])
        self._talk = self._fit_and_judge(list(message.words["passives"]), settings, float(message.words["test"]))
        return self._step(message, None)

    def _go_on(self, message: Message) -> Message:
        if self._talk is None:
            raise ReplyError("no forest is being grown here")
        replies = [self.open(party, message.arrays[f"m{k}"]) for k, party in enumerate(self._addressees)]
        return self._step(message, replies)

    def _step(self, message: Message, replies: Sequence[Message] | None) -> Message:
        assert self._talk is not None
        self._between_rounds = False
        try:
            asked = self._talk.send(replies)  # type: ignore[arg-type]  # the first is None, as generators want it
        except StopIteration as end:
            self._talk, self._addressees = None, []
            return message.answer({"done": True, "worth": end.value})
        self.turn += 1
        self._addressees = [question.to for question in asked]
        words = {"done": False, "to": self._addressees, "t": self.turn, "round": self._round}
        return message.answer(words, {f"m{k}": self.close(question.to, question) for k, question in enumerate(asked)})

    def state(self) -> Message | None:
        """All that this party needs to go on: before the first round, and where one begins."""
        state = super().state()
        if state is None or self._opening is None:
            return state
        if self._scores is None or not self._between_rounds:
            return None
        words = {**state.words, "trees": self.part()["trees"], "round": self._round}
        arrays = {**state.arrays, "opening": self._opening.as_array(), "scores": self._scores}
        return replace(state, words=words, arrays=arrays)

    def restore(self, state: Message) -> None:
        """Take up a state; within a forest, what is asked of others at once is what they have been asked already."""
        super().restore(state)
        if "opening" not in state.arrays:
            return
        self._opening = Message.from_bytes(state.arrays["opening"].tobytes())
        self._scores, self._round = state.arrays["scores"], int(state.words["round"])
        self.trees = _trees_of(state.words["trees"])
        self.turn -= 1
        self._begin(self._opening)

    def _fit_and_judge(self, passives: Sequence[str], settings: Boosting, test: float) -> Talk[dict[str, float]]:
        train, held_out = self.hold_out(settings.seed, test)
        yield from self.fit(passives, settings, train)
        scores = yield from self.scores(held_out)
        assert self.objective is not None
        return {**self.objective.evaluate(scores, self.labels(held_out)), "held_out": len(held_out)}

    def hold_out(self, seed: int, test: float) -> tuple[np.ndarray, np.ndarray]:
        """The common patients to train on and those held out, ordered by their identifiers, so alike in any run."""
        identifiers = [self.table.identifiers[row] for row in self.matched_rows]
        rows = np.array(sorted(range(len(identifiers)), key=identifiers.__getitem__), np.int64)
        apart = min(max(1, round(test * len(rows))), len(rows) - 1)
        held_out = np.sort(rng_for(seed, "held out").permutation(len(rows))[:apart])
        return np.delete(rows, held_out), rows[held_out]

    def labels(self, rows: np.ndarray) -> np.ndarray:
        """The target of ``rows`` of those matched."""
        return np.asarray(self.target[self.matched_rows][rows])

    def fit(self, passives: Sequence[str], settings: Boosting, rows: np.ndarray) -> Talk[None]:
        """Grow a forest on ``rows`` of those matched, with the passive parties of these names."""
        target = self.labels(rows)
        self.objective = boosting.objective_for(target, self.classes)
        with self.clock.at("key"):
            key = PrivateKey(primes=self.draw("primes", lambda: two_primes(self.key_bits)))
        if self._scores is None or not self.parties:  # else a forest is taken up where it was
            self.trees, self.records, self._round = [], [], 0
            words = {"settings": settings.model_dump(exclude={"seed"}), "key": f"{int(key.public.n):x}"}
            yield [Message(self.name, party, "begin", words, {"rows": rows}) for party in passives]
            self._scores = np.tile(self.objective.prior, (len(rows), 1))
        names, binned = (self.name, *passives), boosting.bin_columns(self.values[rows], settings.bins)
        self.data = TreeData(names, settings, key, self.objective, self.records, self.clock, *binned)
        for t in range(self._round, settings.rounds):
            self._round, self._between_rounds = t, True
            g, h = self.objective.derivatives(self._scores, target)
            self._scores = yield from self._grow_round(self._scores.copy(), g, h)
            self._between_rounds = False

    def _grow_round(self, scores: np.ndarray, g: np.ndarray, h: np.ndarray) -> Talk[np.ndarray]:
        assert self.data is not None
        outputs = scores.shape[1] if self.data.settings.outputs == "many" else 1
        for first in range(0, scores.shape[1], outputs):
            part = slice(first, first + outputs)
            growing = Growing(self.data, len(self.trees), (self._round, first), g[:, part], h[:, part])
            yield from growing.grow()
            self.trees.append(Tree(tuple(growing.nodes), first))
            for place in np.unique(growing.leaf):
                scores[growing.leaf == place, part] += growing.nodes[place].weights
        return scores

    def scores(self, rows: np.ndarray) -> Talk[np.ndarray]:
        """What the forest says of ``rows`` of those matched, (rows, outputs); parties are asked level by level."""
        if self.objective is None:
            raise ReplyError("there is no forest to predict with yet")
        at = np.zeros((len(self.trees), len(rows)), np.int64)
        while waiting := self._waiting(at):
            yield from self._descend(waiting, at, rows)
        total = np.tile(self.objective.prior, (len(rows), 1))
        for tree, places in zip(self.trees, at, strict=True):
            outputs = next(len(node.weights) for node in tree.nodes if not node.owner)
            added = np.array([node.weights or (0.0,) * outputs for node in tree.nodes])
            total[:, tree.output : tree.output + outputs] += added[places]
        return total

    def _waiting(self, at: np.ndarray) -> dict[str, list[tuple[int, int]]]:
        waiting: dict[str, list[tuple[int, int]]] = {}
        for k, tree in enumerate(self.trees):
            for place in np.unique(at[k]).tolist():
                if owner := tree.nodes[place].owner:
                    waiting.setdefault(owner, []).append((k, place))
        return waiting

    def _descend(self, waiting: dict[str, list[tuple[int, int]]], at: np.ndarray, rows: np.ndarray) -> Talk[None]:
        places = {key: np.flatnonzero(at[key[0]] == key[1]) for keys in waiting.values() for key in keys}
        messages = []
        for party in (name for name in waiting if name != self.name):
            records = [self.trees[k].nodes[place].record for k, place in waiting[party]]
            arrays = {f"rows{j}": rows[places[key]] for j, key in enumerate(waiting[party])}
            messages.append(Message(self.name, party, "sides", {"records": records}, arrays))
        replies = {reply.sender: reply for reply in (yield messages)} if messages else {}
        for party, keys in waiting.items():
            for j, (k, place) in enumerate(keys):
                node, inside = self.trees[k].nodes[place], places[k, place]
                if party == self.name:
                    left = self.sides([node.record], rows[inside])[0]
                else:
                    left = check_sides(replies[party].arrays[f"left{j}"], (len(inside),))
                at[k, inside] = np.where(left, node.left, node.right)

    def prediction_rows(self, reading: Reading, scores: np.ndarray) -> list[dict[str, Any]]:
        """A row for each common patient, in the table's order, of ``scores`` (rows, outputs)."""
        if self.matched is None or self.objective is None:
            raise ReplyError("there is no forest, or no patient, to predict")
        lines = []
        for row, numbers in sorted(zip(self.matched.tolist(), self.objective.predict(scores).tolist(), strict=True)):
            line: dict[str, Any] = {reading.id: self.table.identifiers[row]}
            if self.class_names:
                shares = {f"p({name})": f"{share:.6f}" for name, share in zip(self.class_names, numbers, strict=True)}
                lines.append(line | {"class": self.class_names[int(np.argmax(numbers))], **shares})
            else:
                lines.append(line | {str(reading.target): f"{numbers[0]:.6g}"})
        return lines


def _trees_of(trees: Sequence[Any]) -> list[Tree]:
    return [
        Tree(tuple(Node._make((*node[:4], tuple(node[4]))) for node in nodes), int(output)) for output, nodes in trees
    ]


class Growing:
    """One tree in the making, its gradients in whole numbers: what is encrypted, read, chosen and asked to be split."""

    def __init__(self, data: TreeData, tree: int, when: tuple[int, int], g: np.ndarray, h: np.ndarray) -> None:
        self.data, self.settings, self.tree = data, data.settings, tree
        self.t = when[0]
        self.rows, factors = boosting.sample_rows(g, self.settings.goss, rng_for(self.settings.seed, "goss", *when))
        self.most = float(factors.max(initial=1.0))
        self.drawn = np.zeros(len(g), bool)
        self.drawn[self.rows] = True
        self.sums = boosting.sampled_sums(g, h, self.rows, factors)  # (2, rows, outputs)
        self.nodes: list[Node] = [Node()]
        self.at = np.zeros(len(g), np.int64)  # the node of each row, -1 once it is in a leaf
        self.leaf = np.zeros(len(g), np.int64)

    def grow(self) -> Talk[None]:
        """Split level by level until nothing is gained or the tree is deep enough; a talk with the passive parties."""
        asked = {party for level in range(self.settings.depth) for party in self._competing(level)}
        yield from self._send_gradients([party for party in self.data.names[1:] if party in asked])
        open_nodes = [0]
        for level in range(self.settings.depth):
            choices = yield from self._choose(open_nodes, level)
            for node in open_nodes:
                if node not in choices:
                    self._close(node)
            open_nodes = yield from self._split(choices)
            if not open_nodes:
                return
        for node in open_nodes:
            self._close(node)

    def _competing(self, level: int) -> tuple[str, ...]:
        return competing_parties(self.settings, self.data.names, self.t, level)

    def _send_gradients(self, parties: Sequence[str]) -> Talk[None]:
        if not parties:
            return
        key, numbers = self.data.key, 2 * self.sums.shape[2]
        self.layout = Layout.of(numbers, self._width(), key.public.bits, self.settings.packing)
        row_numbers = self.sums[:, self.rows].transpose(1, 2, 0).reshape(len(self.rows), numbers)  # g, h, g, h, ...
        with self.data.clock.at("encrypting"):
            plain = [self.layout.plaintexts(row) for row in row_numbers.tolist()]
            chunks = [key.public.to_bytes(key.encrypt(row[k]) for row in plain) for k in range(self.layout.chunks)]
        words = {"tree": self.tree, "numbers": numbers, "width": self.layout.width}
        arrays = {"rows": self.rows, **{f"chunk{k}": chunk for k, chunk in enumerate(chunks)}}
        yield [Message(self.data.names[0], party, "gradients", words, arrays) for party in parties]

    def _width(self) -> int:
        """Bits for any sum; from what gradients can be, not from what they are, where that is known."""
        bound = self.data.objective.bound
        if bound is None:
            largest = max(1.0, boosting.from_fixed_point(np.abs(self.sums)).max())
            return boosting.sum_bits(len(self.rows), 2.0 ** np.ceil(np.log2(largest)))
        return boosting.sum_bits(len(self.rows), bound * self.most)

    def _choose(self, open_nodes: list[int], level: int) -> Talk[dict[int, Choice]]:
        active, competitors = self.data.names[0], self._competing(level)
        passives = [party for party in competitors if party != active]
        words = {"tree": self.tree, "nodes": [[node, -1] for node in open_nodes]}  # earlier parties read a parent
        asked = [Message(active, party, "sums", words, {"at": self.at}) for party in passives]
        replies = {reply.sender: reply for reply in (yield asked)} if asked else {}
        sums = {party: self._decrypt(replies[party], len(open_nodes)) for party in passives}
        choices: dict[int, Choice] = {}
        for k, node in enumerate(open_nodes):
            gain, total, rows = -np.inf, self._total(node), np.flatnonzero((self.at == node) & self.drawn)
            for party in competitors:
                if party == active:
                    own = self.data.bins[rows], self.sums[:, rows]
                    listed, left = boosting.candidate_sums(*own, self.settings)
                else:
                    listed, left = [], sums[party][k]
                best = boosting.best_split(left, total, self.settings)
                if best is not None and best[0] > gain:
                    gain = best[0]
                    choices[node] = (party, *listed[best[1]]) if listed else (party, best[1], -1)
        return choices

    def _decrypt(self, reply: Message, nodes: int) -> list[Sums]:
        counts = [int(count) for count in reply.words["counts"]]
        total, key = sum(counts), self.data.key
        with self.data.clock.at("decrypting"):
            carried = [key.public.from_bytes(reply.arrays[f"chunk{k}"]) for k in range(self.layout.chunks)]
            chunks = [[key.decrypt(ciphertext) for ciphertext in chunk] for chunk in carried]
        wanted = -(-total // self.layout.splits)
        if len(counts) != nodes or any(len(chunk) != wanted for chunk in chunks):
            raise ReplyError(f"{reply.sender} answered with another number of sums than it says")
        self.data.sums_read += total
        numbers = self.layout.sums(chunks, total).reshape(total, self.sums.shape[2], 2)  # (splits, outputs, g and h)
        return [Sums(part[..., 0], part[..., 1]) for part in np.split(numbers, np.cumsum(counts)[:-1])]

    def _split(self, choices: dict[int, Choice]) -> Talk[list[int]]:
        active, by_party = self.data.names[0], dict[str, list[list[int]]]()
        for node, (party, place, _) in choices.items():
            if party != active:
                by_party.setdefault(party, []).append([node, place])
        words = {party: {"tree": self.tree, "splits": asked} for party, asked in by_party.items()}
        messages = [Message(active, party, "split", asked) for party, asked in words.items()]
        answers: dict[int, tuple[int, np.ndarray]] = {}
        for reply in (yield messages) if messages else ():
            asked = by_party[reply.sender]
            left = check_sides(reply.arrays["left"], (len(asked), len(self.at)))
            for (node, _), record, side in zip(asked, reply.words["records"], left, strict=True):
                answers[node] = (int(record), side)
        return [child for node, choice in choices.items() for child in self._divide(node, choice, answers.get(node))]

    def _divide(self, node: int, choice: Choice, answer: tuple[int, np.ndarray] | None) -> tuple[int, int]:
        party, column, after = choice
        if answer is None:
            self.data.records.append(Split(column, float(self.data.cuts[column][after])))
            answer = (len(self.data.records) - 1, self.data.bins[:, column] <= after)
        left, right = len(self.nodes), len(self.nodes) + 1
        self.nodes[node] = Node(party, answer[0], left, right)
        self.nodes += [Node(), Node()]
        inside = self.at == node
        self.at[inside] = np.where(answer[1][inside], left, right)
        return left, right

    def _close(self, node: int) -> None:
        inside = self.at == node
        self.nodes[node] = Node(weights=boosting.leaf_weights(self._total(node), self.settings))
        self.leaf[inside], self.at[inside] = node, -1

    def _total(self, node: int) -> Sums:
        return Sums(*self.sums[:, self.at == node].sum(axis=1))


def check_sides(left: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Which rows go left, as another party says it; ReplyError where that is not what was asked."""
    if left.dtype != bool or left.shape != shape:
        raise ReplyError(f"a party was asked which rows go left, {shape}, and said {left.dtype} {left.shape}")
    return left
