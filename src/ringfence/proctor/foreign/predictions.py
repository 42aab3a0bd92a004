"""Predictions for SWE-bench: patches that somebody's agent made earlier, in the data set's own form.

A prediction is a hostile patch. It is applied by our own strict reader inside the agent's sandbox, as an agent that
does nothing else, and then graded as any agent's work.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping

from ringfence.errors import UsageError
from ringfence.model.record import record
from ringfence.proctor.foreign import patches
from ringfence.proctor.foreign.instance import Instance, rows_of

PATCH = "patch.diff"
PROGRAM = os.path.realpath(patches.__file__)


@record
class Prediction:
    """One patch for one instance."""

    instance_id: str
    model_patch: str
    model_name_or_path: str = ""


def read_predictions(path: str) -> dict[str, Prediction]:
    """Return the predictions of a file by their instances: a JSON list, an object by instance, or JSONL."""
    rows = rows_of(path)
    if len(rows) == 1 and "instance_id" not in rows[0]:
        rows = [row for row in map(_named, rows[0].items()) if row]
    found: dict[str, Prediction] = {}
    for number, row in enumerate(rows, 1):
        made = _prediction(row, f"{path}: row {number}")
        if made.instance_id in found:
            raise UsageError(f"{path}: row {number}: instance_id: {made.instance_id!r} appears twice")
        found[made.instance_id] = made
    return found


def _named(item: tuple[str, object]) -> Mapping[str, object]:
    name, row = item
    return {"instance_id": name, **row} if isinstance(row, Mapping) else {"instance_id": name, "model_patch": row}


def _prediction(row: Mapping[str, object], where: str) -> Prediction:
    name, patch, model = (row.get(key, "") for key in ("instance_id", "model_patch", "model_name_or_path"))
    if not isinstance(name, str) or not name:
        raise UsageError(f"{where}: instance_id: must be a non-empty string")
    if patch is None:
        patch = ""  # an agent that gave up
    if not isinstance(patch, str) or "model_patch" not in row:
        raise UsageError(f"{where}: model_patch: must be a string with a patch")
    if not isinstance(model, str):
        raise UsageError(f"{where}: model_name_or_path: must be a string")
    return Prediction(instance_id=name, model_patch=patch, model_name_or_path=model)


def prediction_for(path: str, instance: Instance) -> Prediction:
    """Return the one for an instance; UsageError where the file has none. The sandbox finds out whether its patch can
    be applied: a bad one is a fail of its author, not an error."""
    found = read_predictions(path).get(instance.instance_id)
    if found is None:
        raise UsageError(f"{path}: no prediction for {instance.instance_id}", hint="see the instance_id of its rows")
    return found


def patching(patch: str, place: str, mount_at: str) -> str:
    """Return the command of an agent that applies a patch, and does nothing else. ``place``: a private directory that
    outlasts the run."""
    path = written(place, PATCH, patch)
    return shlex.join([sys.executable, "-I", "-S", PROGRAM, path, mount_at])


def written(place: str, name: str, text: str) -> str:
    """Write a new file that a sandbox can read, and return its path. JSON may hold lone surrogates: no patch with them
    can be applied, but they are no error here."""
    path = os.path.join(place, name)
    with open(path, "xb") as file:
        try:
            file.write(text.encode("utf-8", "surrogateescape"))
        except UnicodeEncodeError:
            file.write(text.encode("utf-8", "backslashreplace"))
    os.chmod(path, 0o644)
    return path
