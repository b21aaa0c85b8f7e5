"""The handshake before a run's first communication round: who is there with what, and the agreed scaling.

Sums over features and classes come with the first answers; a second question brings the scaling, where there is one.
What was agreed is kept in the run's folder, so a resumed run asks for no sums again.
"""

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from pydantic import ValidationError

from fedsmall import __version__
from fedsmall.data.federation import Task, task_from
from fedsmall.data.outcomes import kind_of
from fedsmall.data.preparation import Scaling, Sums, agree
from fedsmall.data.raw_site import BALANCED, agreed_weights, with_weights
from fedsmall.errors import PlanError, ReplyError
from fedsmall.exact import in_parts
from fedsmall.files import one_line
from fedsmall.plan import Plan
from fedsmall.planning.run_sheet import CLASSES, ROWS, SCALING, SUMS, TELL, RunSheet, Sheet
from fedsmall.sealing.envelopes import Announcement, Transcript, digest, roll_digest
from fedsmall.sealing.routing import seed_of
from fedsmall.sealing.tables import MEETING, TABLES, check_tables
from fedsmall.sealing.tallies import SUMS_BEFORE, TOGETHER
from fedsmall.sealing.terms import ANNOUNCED, BEFORE, NONCE, PAIRS, ROLL, Opened
from fedsmall.strategies.checks import read_array
from fedsmall.strategies.records import to_record
from fedsmall.strategies.roster import Roster
from fedsmall.strategies.sealed_models import SealedModels
from fedsmall.strategies.server.grid import RetryingGrid
from fedsmall.strategies.server.journal import put
from fedsmall.strategies.server.regions import Line
from fedsmall.wire import CONFIG, EXAMPLES, PLAN, PROTOCOL, Arrays, join, split, split_vector

Told = Mapping[str, RecordDict]  # what each site's answer at the handshake holds, by name
OF_SUMS = ("count", "total", "squares")


Met = tuple[RunSheet, Task, SealedModels | None]  # the sheet with the sites' agreement, and how models are sealed


def meet(roster: Roster, sheet: RunSheet, grid: RetryingGrid, folder: Path, line: Line | None = None) -> Met:
    """Wait for the sites and let them agree, a region's with others over its ``line``; fills the ``roster``.

    Raises PlanError that names every site that is missing, refuses, or differs from the others.
    """
    wait_for_sites(sheet, grid)
    hidden = sheet.plan.privacy.secure
    answers = greet(roster, sheet, grid, [] if hidden else sums_to_ask(sheet.plan, folder))
    task = agree_on_task(roster, grid, sheet.plan)
    if line is not None:
        kinds = [kind for kind in (SUMS, CLASSES) if answers and all(kind in content for content in answers.values())]
        sums = {kind: [_sums(site, kind, answers[site])[0] for site in sorted(answers)] for kind in kinds}
        agree_above(line, folder, roster.answers, sums)
    if hidden:  # sums need keys, so these come first
        if (folder / WEIGHTS_FILE).exists():
            sheet = agree_on_weights(sheet, folder, task, answers)
        sheet, sealed = send_agreement(roster, sheet, grid, folder, None)
        assert sealed is not None
        scaled = all(answer.get("scaled") for answer in roster.answers.values())
        tell = [name for name in sums_to_ask(sheet.plan, folder) if name == CLASSES or scaled]
        answers = sums_before(sealed, tell, task.classes) if tell else {}
        if not answers and not (folder / SCALING_FILE).exists():
            return sheet, task, sealed
    sheet = agree_on_weights(sheet, folder, task, answers)
    scaling = agreed_scaling(roster, folder, answers, of_regions=sheet.is_above)
    sheet, sealed = send_agreement(roster, sheet, grid, folder, scaling)
    return sheet, task, sealed


def sums_to_ask(plan: Plan, folder: Path) -> list[str]:
    """The kinds of sums that are not agreed on yet."""
    features = [] if (folder / SCALING_FILE).exists() else [SUMS]
    balanced = plan.recipe.class_weights == BALANCED and not (folder / WEIGHTS_FILE).exists()
    return [*features, CLASSES] if balanced else features


def wait_for_sites(sheet: Sheet, grid: RetryingGrid) -> None:
    """Wait until every site of the sheet is connected. Raises PlanError that names those that are not."""
    deadline = grid.clock() + sheet.start_deadline_s
    while missing := set(sheet.sites) - {node.name for node in grid.get_nodes()}:
        if grid.clock() > deadline:
            raise PlanError(
                f"{', '.join(sorted(missing))} did not connect within {sheet.start_deadline_s:g} s. "
                f"Start the sites, then `fedsmall resume {sheet.run}`; or start a run without them."
            )
        time.sleep(1.0)


def greet(roster: Roster, sheet: RunSheet, grid: RetryingGrid, tell: Sequence[str]) -> Told:
    """Shake hands; the answers, with the sums in ``tell``. A site is who its key says; PlanError names refusals."""
    config = _words(sheet, **({TELL: list(tell)} if tell else {}))
    answers = _ask(sheet, grid, MessageType.QUERY, RecordDict({CONFIG: config}))
    for site, (node, content) in answers.items():
        answer = dict(content.config_records.get(CONFIG, {}))
        if answer.get("site") != site:
            raise PlanError(f"the program that is registered as {site!r} calls itself {str(answer.get('site'))[:63]!r}")
        roster.nodes[site], roster.answers[site] = node, answer
    return {site: content for site, (_, content) in answers.items()}


def agreed_scaling(roster: Roster, folder: Path, answers: Told, *, of_regions: bool = False) -> Scaling | None:
    """The scaling from all sites' sums; kept in the folder for a resumed run."""
    if not all(answer.get("scaled") for answer in roster.answers.values()):
        return None
    if kept := _kept(folder / SCALING_FILE):
        return Scaling(**{name: np.array(values) for name, values in kept.items()})
    sums = {site: _sums(site, SUMS, answers[site], of_regions) for site in sorted(answers)}
    features = {site: len(parts_of[0].count) for site, parts_of in sums.items()}
    if len(set(features.values())) > 1:
        counts = ", ".join(f"{site} has {count}" for site, count in features.items())
        raise PlanError(f"Sites differ in their number of features: {counts}. All must hold the same.")
    scaling = agree([part for parts_of in sums.values() for part in parts_of])
    keep_scaling(folder, scaling)
    return scaling


def send_agreement(
    roster: Roster, sheet: RunSheet, grid: RetryingGrid, folder: Path, scaling: Scaling | None
) -> tuple[RunSheet, SealedModels | None]:
    """Send every site the scaling and the keys of all, if any.

    Returns the sheet, with the seed of its routes where the sites have drawn one, and how models are sealed.
    """
    envelopes, announced, words = sheet.plan.privacy.hidden, dict[str, Announcement](), {}
    keys = {site: str(answer[MEETING]) for site, answer in roster.answers.items() if MEETING in answer}
    if scaling is None and not envelopes and len(keys) < 2:
        return sheet, None
    if keys:
        words = {MEETING: json.dumps(keys)}
    if envelopes:
        announced = {site: _read_announcement(site, answer) for site, answer in sorted(roster.answers.items())}
        words = {ANNOUNCED: Opened(announced=announced).model_dump_json()}
    content = RecordDict({CONFIG: _words(sheet, **words)})
    if scaling is not None:
        content[SCALING] = to_record(vars(scaling))
    answers = _ask(sheet, grid, f"{MessageType.QUERY}.{SCALING}", content)
    check_tables({site: _read_sketches(answers[site][1]) for site in announced or keys})
    if not envelopes:
        return sheet, None
    if sheet.plan.privacy.secure and scaling is None:
        _pass_pair_keys_on(sheet, grid, {site: content for site, (_, content) in answers.items()})
    nonces = {site: str(content[CONFIG].get(NONCE, "")) for site, (_, content) in sorted(answers.items())}
    for site, nonce in nonces.items():
        if digest("drawn", nonce) != announced[site].commitment:
            raise PlanError(f"{site}: what it had drawn for the routes is not what it committed itself to")
    plan = sheet.plan.model_copy(update={"route_seed": seed_of(nonces, sheet.plan.seed)})
    begun = Transcript.start(f"{sheet.run} {sheet.id}", roll_digest(sheet.roll), announced, nonces)
    sealed = SealedModels(plan, roster, grid, begun, nonces, sheet.sites, folder)
    return sheet.model_copy(update={"plan": plan}), sealed


def _pass_pair_keys_on(sheet: RunSheet, grid: RetryingGrid, answers: Told) -> None:
    """Pass on the envelopes in which each site sealed a key for every one after it. PlanError where one is missing."""
    envelopes: dict[str, Any] = {site: answers[site].array_records.get(PAIRS, {}) for site in answers}
    contents = {}
    for site in sheet.sites:
        before = [other for other in sorted(answers) if other < site]
        if wrong := [other for other in before if site not in envelopes[other]]:
            raise PlanError(f"{wrong[0]}: it sends {site} no key for the masks of secure sums")
        record = ArrayRecord({other: envelopes[other][site] for other in before})
        contents[site] = RecordDict({CONFIG: _words(sheet), PAIRS: record})
    _ask(sheet, grid, f"{MessageType.QUERY}.{PAIRS}", contents)


def _read_sketches(content: RecordDict) -> dict[str, str]:
    record: Any = content.config_records.get(CONFIG, {})
    try:
        return dict(json.loads(str(record.get(TABLES, "{}"))))
    except (ValueError, TypeError):
        return {}


def _read_announcement(site: str, answer: Mapping[str, Any]) -> Announcement:
    try:
        return Announcement.model_validate_json(str(answer.get(ANNOUNCED, "")))
    except ValidationError:
        raise PlanError(f"{site}: it announces no key for encrypted messages") from None


def agree_on_weights(sheet: RunSheet, folder: Path, task: Task, answers: Told) -> RunSheet:
    """The sheet with the class weights from the sites' sums; kept for a resumed run."""
    if sheet.plan.recipe.class_weights != BALANCED:
        return sheet
    if (weights := _kept(folder / WEIGHTS_FILE)) is None:
        sums = [part for site in sorted(answers) for part in _sums(site, CLASSES, answers[site], sheet.is_above)]
        if any(len(part.count) != task.classes for part in sums):
            raise PlanError(f"Not every site tells of {task.classes} classes. All must know the same.")
        keep_weights(folder, weights := list(agreed_weights(sums, task)))
    return sheet.model_copy(update={"plan": with_weights(sheet.plan, weights)})


def _words(sheet: RunSheet, **more: Any) -> ConfigRecord:
    roll = {ROLL: json.dumps(sheet.roll)} if sheet.plan.privacy.hidden else {}
    return ConfigRecord({PLAN: sheet.plan.model_dump_json(exclude_defaults=True), **roll, **more})


def _ask(
    sheet: RunSheet, grid: RetryingGrid, kind: str, content: RecordDict | Told
) -> dict[str, tuple[int, RecordDict]]:
    """The answers of all sites to one question, or to their own, by name. PlanError where one refuses or is silent."""
    nodes = {node.name: node.node_id for node in grid.get_nodes() if node.name in sheet.sites}
    each = dict.fromkeys(nodes, content) if isinstance(content, RecordDict) else content
    orders = {site: Message(each[site], nodes[site], kind) for site in sorted(nodes)}
    replies = {reply.metadata.reply_to_message_id: reply for reply in grid.send_and_receive(orders.values())}
    answers, faults = {}, dict[str, list[str]]()  # sites by what keeps them away
    for site in sheet.sites:
        reply = replies.get(orders[site].metadata.message_id) if site in orders else None
        if reply is not None and not reply.has_error():
            answers[site] = (nodes[site], reply.content)
            continue
        reason = f"no answer within {sheet.round_deadline_s:g} s" if reply is None else reply.error.reason
        reason = " ".join((reason or "no reason given").split())[:300]
        faults.setdefault(reason.removeprefix(f"{site}: "), []).append(site)
    if faults:
        reasons = "; ".join(f"{', '.join(sites)}: {reason}" for reason, sites in faults.items())
        raise PlanError(f"Not every site takes part. {reasons}")
    return answers


def _sums(site: str, kind: str, content: RecordDict, of_region: bool = False) -> list[Sums]:
    """One kind of sums in a site's answer, checked: of shape (features,) or (classes,), a region's (parts, ...)."""
    record: Any = content.array_records.get(kind, {})
    try:
        arrays = {name: read_array(name, record[name]) for name in OF_SUMS}
    except (KeyError, ReplyError):
        raise PlanError(f"{site}: its sums cannot be read") from None
    if any(values.dtype != np.float64 or not np.isfinite(values).all() for values in arrays.values()):
        raise PlanError(f"{site}: its sums hold a number that is not finite")
    count, shapes = arrays["count"], {values.shape for values in arrays.values()}
    if len(shapes) > 1 or count.ndim != 1 + of_region or (of_region and not len(count)) or (count < 0).any():
        raise PlanError(f"{site}: its sums are not three numbers for each feature")
    return [Sums(*rows) for rows in zip(*map(np.atleast_2d, arrays.values()), strict=True)]


SCALING_FILE, WEIGHTS_FILE = "scaling.json", "class_weights.json"


def keep_scaling(folder: Path, scaling: Scaling) -> None:
    """Keep the scaling of all features."""
    put(folder / SCALING_FILE, json.dumps({name: values.tolist() for name, values in vars(scaling).items()}).encode())


def keep_weights(folder: Path, weights: Sequence[float]) -> None:
    """Keep the weight of every class."""
    put(folder / WEIGHTS_FILE, json.dumps(list(weights)).encode())


def _kept(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


MOST_ROWS = 4 << 20  # characters in which a site says how its rows become samples


def reported_at_handshake(answers: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The sites' training "samples" by name, and "rows": how rows become samples, None where sites differ in that."""
    samples = {site: int(answers[site].get(EXAMPLES, 0)) for site in sorted(answers)}
    try:
        rows = [json.loads(str(answers[site].get(ROWS, "null"))[:MOST_ROWS]) for site in samples]
        separate = {"separator", "decimal"}
        alike = [row and {**row, "form": {k: v for k, v in row["form"].items() if k not in separate}} for row in rows]
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return {"samples": samples, "rows": None}
    return {"samples": samples, "rows": rows[0] if all(read == alike[0] for read in alike) else None}


Answers = Mapping[str, Mapping[str, Any]]
WORDS = ("task", "signature")  # on which the sites of a region have agreed


def agree_above(line: Line, folder: Path, answers: Answers, sums: Mapping[str, Sequence[Sums]]) -> None:
    """Let a region's sites agree with all others; kept in the ``folder``. PlanError where it is too little."""
    scaled = all(answer.get("scaled") for answer in answers.values())
    words = {word: answers[min(answers)].get(word) for word in WORDS}
    words |= {"scaled": scaled, ROWS: json.dumps(reported_at_handshake(answers)["rows"])}
    agreed = line.meet(words, join(**{kind: combine_sums(parts_of) for kind, parts_of in sums.items()}))
    if scaled and set(agreed.arrays) != {"mean", "scale"}:
        raise PlanError("the features of this region are scaled, and those of another are not: all must hold the same")
    if scaled:
        keep_scaling(folder, Scaling(**agreed.arrays))
    if isinstance(weights := agreed.words.get("class_weights"), list):
        keep_weights(folder, weights)


def combine_sums(sums: Sequence[Sums]) -> Arrays:
    """The exact sum of several sites' sums: {"count": (parts, features), ...}, padded with zeros."""
    parts = {name: in_parts([getattr(site_sums, name) for site_sums in sums]) for name in OF_SUMS}
    most = max(map(len, parts.values()))
    return {name: np.pad(array, ((0, most - len(array)), (0, 0))) for name, array in parts.items()}


def sums_before(sealed: SealedModels, tell: list[str], classes: int) -> dict[str, RecordDict]:
    """The secure sums of all sites, as one site's answer at the handshake. Raises PlanError where a site sends none."""
    config = ConfigRecord({**sealed.words(0), TELL: tell})
    contents = {site: RecordDict({CONFIG: config}) for site in sealed.routes.names}
    tally = sealed.open_sum(0, SUMS_BEFORE, f"{MessageType.QUERY}.{BEFORE}", contents)
    if missing := sorted(set(contents) - set(tally.sites)):
        reasons = "; ".join(f"{event['site']}: {event['reason']}" for event in sealed.roster.events)
        raise PlanError(f"Not every site takes part. {', '.join(missing)} told no sums. {reasons[:1000]}")
    sizes = {CLASSES: classes} if CLASSES in tell else {}
    if SUMS in tell:
        sizes[SUMS] = len(tally.values) // len(OF_SUMS) - sum(sizes.values())
    shapes = {f"{name}/{part}": (size,) for name, size in sizes.items() for part in OF_SUMS}
    if sum(size for (size,) in shapes.values()) != len(tally.values) or min(sizes.values()) < 1:
        raise PlanError("The sums that sites tell are not those that they were asked for.")
    arrays = split_vector(tally.values, shapes)
    return {TOGETHER: RecordDict({name: to_record(split(arrays, name)) for name in sizes})}


def agree_on_task(roster: Roster, grid: Grid, plan: Plan) -> Task:
    """Shake hands and return the agreed task; the first site's, where sites have their own models.

    PlanError, with both values, where two sites differ in task, model or protocol; and where nobody answers.
    """
    roster.call(grid, {PLAN: plan.model_dump_json(exclude_defaults=True)})
    roster.check()
    answers = {site: roster.answers[site] for site in roster.sites}
    for site, answer in answers.items():
        if "error" in answer:
            raise PlanError(f"Site {site!r} cannot take part: {answer['error']}")
        if answer.get("protocol") != PROTOCOL:
            raise PlanError(
                f"Site {site!r} cannot take part: its fedsmall {one_line(answer.get('version'), 40)} speaks protocol "
                f"{one_line(answer.get('protocol', 'of a release before 0.3'), 40)}, and this server's {__version__} "
                f"protocol {PROTOCOL}. Install a release with this protocol there."
            )
    for key in ("task", "signature"):
        _check_alike(key, {site: _to_agree(key, answer, plan) for site, answer in answers.items()})
    return task_from(json.loads(str(answers[min(answers)]["task"])))


def _to_agree(key: str, answer: Mapping[str, Any], plan: Plan) -> str:
    """A site's answer without what may differ: sites with own models may differ in the length of targets."""
    if key != "task" or not plan.has_own_models:
        return str(answer.get(key))
    task = json.loads(str(answer[key]))
    return json.dumps({**task, "classes": None} if kind_of(str(task.get("loss"))) == "numbers" else task)


def _check_alike(key: str, values: Mapping[str, str]) -> None:
    usual = Counter(values.values()).most_common(1)[0][0]
    most = next(site for site, value in values.items() if value == usual)
    for site, value in values.items():
        if value != usual:
            of_most, differing = _differences(usual, value) if key == "task" else (usual, value)
            raise PlanError(
                f"Sites differ in their {key}: {most!r} has {of_most[:200]}, {site!r} has {differing[:200]}. "
                "All must run the same."
            )


def _differences(usual: str, other: str) -> list[str]:
    """The differing fields of two tasks, features first; of lists what the other lacks, or all for their order."""
    tasks = [json.loads(usual), json.loads(other)]
    fields = [name for name in tasks[0] if tasks[0][name] != tasks[1].get(name)]
    differing: list[dict[str, Any]] = [{}, {}]
    for name in sorted(fields, key=lambda name: name != "feature_names"):
        values = [task.get(name) for task in tasks]
        if all(isinstance(value, list) for value in values):
            lacking = [[item for item in a if item not in b] for a, b in (values, values[::-1])]
            values = lacking if any(lacking) else values
        differing[0][name], differing[1][name] = values
    return [json.dumps(item, ensure_ascii=False) for item in differing]
