"""Roll a stopped job back to an epoch: remove later epochs from its checkpoint, so that the next run plans them again.

The removal may be interrupted at any point. The order leaves a checkpoint that stops at its ledger, or one that the
same command, given again, rolls back:

    1  state of later versions       Spark would believe a snapshot of one when its number comes again; and snapshots
                                     that lack a table, if an older one is complete: Spark would take the newer first
    2  notes of later epochs         which snapshot of a table they saw, which files they read; schemas of their state
    3  commits and offsets           the newest first

With `keeps_next` the offsets of the next epoch stay: the run computes that epoch again over the same events, and no
other. Spark repeats only the last epoch that it has offsets of.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlparse

from lockgate.checkpoints.history import History
from lockgate.checkpoints.tree import LocalTree
from lockgate.checkpoints.versions import whole_chain
from lockgate.connectors.returned import FOLDER
from lockgate.errors import Refused

_NOTE = re.compile(r"(?:tables/[^/]+|described/files)/epochs/(\d+)")
_SCHEMA = re.compile(r"state/\d+/_metadata/v2/(\d+)")


def later_files(history: History, epoch: int, *, keeps_next: bool) -> tuple[str, ...]:
    """The files to remove, in the order of their removal."""
    last_planned = epoch + 1 if keeps_next else epoch
    state: list[str] = []
    for store in history.stores:
        state += [file.name for file in store.files if file.version >= epoch + 2]
        chain = whole_chain(history.listings, store, epoch + 1)
        newer = [] if chain is None else [file for file in store.files if chain.base < file.version <= epoch + 1]
        state += [file.name for file in newer if file.is_snapshot]
    notes = [
        name
        for name in history.entries
        for found in [_NOTE.fullmatch(name) or _SCHEMA.fullmatch(name)]
        if found is not None and int(found.group(1)) > last_planned
    ]
    logs = [
        name
        for number in sorted({*history.planned, *history.committed}, reverse=True)
        for name, is_later in (
            (f"commits/{number}", number > epoch and number in history.committed),
            (f"offsets/{number}", number > last_planned and number in history.planned),
        )
        if is_later
    ]
    return (*state, *notes, *logs)


def refuse_lost_files(history: History, epoch: int) -> None:
    """Refuse to go back past files that do not exist any more, so that the job could not read them again."""
    for path in sorted(history.unread(epoch)):
        where = f"checkpoint {history.tree.root}, {path}"
        if f"/{FOLDER}/" in path:
            raise Refused(
                f"events were retried, or sent back from the dead letters, since epoch {epoch}; their files are"
                " removed, so they would be lost",
                where=where,
                fix="go back to a later epoch; or start from the beginning: lockgate run --new-life",
            )
        local = _local(path)
        if local is not None and isinstance(history.tree, LocalTree) and not local.exists():
            raise Refused(
                f"a file that was read since epoch {epoch} is gone, so it cannot be read again",
                where=where,
                fix="restore it to its old place, or go back to a later epoch",
            )


def _local(path: str) -> Path | None:
    parsed = urlparse(path)
    return Path(unquote(parsed.path)) if parsed.scheme in ("", "file") else None
