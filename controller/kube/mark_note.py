# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Where the node's mark and capacity can be taken back by who was not there when they were put.

The note lies beside the journal as long as they may be there: ``sweetpoint release`` has no
configuration, and the agent may be gone.
"""

import json
from pathlib import Path

from controller.kube.api import Api
from controller.kube.capacity import take_off
from controller.kube.errors import ApiError, ApiUnreachable
from controller.kube.mark import unmark
from controller.statefile import write_json

__all__ = ("release_mark", "remove_note", "write_note")

_NAME = "node-mark.json"


def write_note(state_dir: Path, node: str, kubeconfig: Path | None) -> None:
    """Write down which node may be marked and how to reach its API server.

    :raises OSError: it cannot be written.
    """
    where = None if kubeconfig is None else str(kubeconfig)
    write_json(state_dir / _NAME, {"node": node, "kubeconfig": where})


def remove_note(state_dir: Path) -> None:
    """Remove the note: there is no mark."""
    (state_dir / _NAME).unlink(missing_ok=True)


def release_mark(state_dir: Path) -> tuple[bool, str]:
    """Take back what the note tells of; whether nothing is there now, and one line about it.

    The line is empty if there is no note.
    """
    try:
        note = json.loads((state_dir / _NAME).read_text(encoding="utf-8"))
        node, where = str(note["node"]), note["kubeconfig"]
        kubeconfig = None if where is None else Path(where)
    except FileNotFoundError:
        return True, ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        return False, f"{state_dir / _NAME}: {error}"
    try:
        api = Api(kubeconfig)
        found = unmark(api, node)
    except (ApiError, ApiUnreachable, ValueError) as error:
        return False, f"node {node}: the mark may still be there: {error}"
    text = f"node {node}: the mark is {'taken back' if found else 'not there'}"
    try:
        offered = take_off(api, node)
    except (ApiError, ApiUnreachable) as error:
        return False, f"{text}; reclaimable capacity may still be there: {error}"
    remove_note(state_dir)
    return True, f"{text}; reclaimable capacity is taken off" if offered else text
