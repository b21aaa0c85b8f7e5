"""Coordinators, what each may do, and a log of their commands in which each is signed with their own key.

The log, ``log/commands.jsonl``, is the only record: its first line appoints a coordinator by that one's own key, and
every line counts where its signer had the right by those before it. Without it, whoever has the folder may do
everything. Who can write the folder can go round the commands, but signs in nobody's name: a hospital whose policy
names ``coordinators`` trains in no run that none of them has started.
"""

import fcntl
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from fedsmall.audit_log import AuditLog, verify
from fedsmall.ends import Command, signer
from fedsmall.errors import PlanError
from fedsmall.methods import check_known
from fedsmall.sim.consortium import keys

LOG = Path("log") / "commands.jsonl"
KEY = "FEDSMALL_COORDINATOR"  # names the file of the key of whoever commands
APPOINT = "appoint"
OF_START, OF_ADMIT = ("start", "resume", "stop"), ("add-site", "renew")
RIGHTS = {APPOINT: (APPOINT,), "start": OF_START, "admit": OF_ADMIT, "revoke": ("revoke",)}  # and their commands


class Coordinator(NamedTuple):
    """The public ``key`` of a coordinator, an OpenSSH line, and the rights in force."""

    key: str
    may: tuple[str, ...]


def read(folder: Path) -> tuple[dict[str, Coordinator], list[dict[str, Any]]]:
    """The coordinators by name, and their commands' lines; ValueError for a line that its signer had no right to."""
    path, known = folder / LOG, dict[str, Coordinator]()
    if not path.exists():
        return {}, []
    if fault := verify(path).fault:
        raise ValueError(f"the log of commands cannot be trusted: {fault}")
    entries = list(AuditLog(path).entries())
    for entry in entries:
        try:
            command = Command.model_validate(entry["command"])
        except (KeyError, ValidationError):
            raise ValueError(f"line {entry['n']} of the log of commands is no command") from None
        if command.head != entry["before"] or not command.is_signed or not _is_allowed(known, command):
            raise ValueError(f"line {entry['n']} of the log of commands is signed by nobody who may {command.command}")
        if command.command == APPOINT:
            known[command.words["name"]] = Coordinator(command.words["key"], tuple(command.words["may"]))
    return known, entries


def sign(folder: Path, command: str, **words: Any) -> Command | None:
    """Sign and log a command before it is carried out; None in a consortium that has no coordinators.

    Raises PlanError where the key that ``FEDSMALL_COORDINATOR`` names has no right to it.
    """
    path = folder / LOG
    if not path.exists() and command != APPOINT:
        return None
    with (path.parent / "commands.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known, _ = read(folder)
        file = Path(os.environ.get(KEY, ""))
        if not file.is_file():
            raise PlanError(f"Coordinators sign what they command: let {KEY} name the file of your key.")
        public = keys.read_public_key(file.with_name(f"{file.name}.pub")).decode()
        name = next((name for name, of in known.items() if of.key == public), str(words.get("name", "")))
        made = Command(command=command, by=name, key=public, words=words, head=AuditLog(path).last()[1])
        made = made.signed(signer(file))
        if known and known.get(name, ("",))[0] != public:
            raise PlanError(f"The key in {file.name} is no coordinator's here; there are {', '.join(sorted(known))}.")
        if not made.is_signed:
            raise PlanError(f"{file.name} and {file.name}.pub are not of one pair.")
        if not _is_allowed(known, made):
            if not known:
                raise PlanError("The first coordinator is appointed by the own key, to appoint; nothing was done.")
            raise PlanError(f"{name} may {', '.join(known[name].may) or 'nothing'}; nothing was done.")
        AuditLog(path).write("command", command=made.model_dump())
    return made


def appoint(folder: Path, name: str, public: Path, may: Sequence[str]) -> None:
    """Give a coordinator these rights in place of earlier ones; none at all end them. PlanError as :func:`sign`."""
    for right in may:
        check_known(right, RIGHTS, f"There is no right {right!r}", PlanError)
    key, (known, _) = keys.read_public_key(public).decode(), read(folder)
    others = {other: coordinator for other, coordinator in known.items() if other != name}
    if same := [other for other, coordinator in others.items() if coordinator.key == key]:
        raise PlanError(f"{same[0]} uses this key already; every coordinator makes an own one.")
    if known and APPOINT not in may and not any(APPOINT in coordinator.may for coordinator in others.values()):
        raise PlanError("Then nobody could appoint any more; give the right to another first.")
    sign(folder, APPOINT, name=name, key=key, may=list(may))


def _is_allowed(known: Mapping[str, Coordinator], command: Command) -> bool:
    """Whether a command's signer had the right to it; the first coordinator is appointed by the own key."""
    if not known:
        words = command.words
        return command.command == APPOINT and words.get("key") == command.key and APPOINT in words.get("may", ())
    coordinator = known.get(command.by)
    rights = () if coordinator is None or coordinator.key != command.key else coordinator.may
    return command.command in {each for right in rights for each in RIGHTS.get(right, ())}
