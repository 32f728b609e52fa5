# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What this kernel lacks for good, so that no agent can measure here: BTF, and reading its memory.

Standard library only, because the doctor imports this module.
"""

from pathlib import Path
import re

__all__ = ("find_lockdown", "find_unsupported")

_BTF = Path("/sys/kernel/btf/vmlinux")
# The second path: securityfs is not mounted in containers, which have the host's process ids.
_LOCKDOWN = (
    Path("/sys/kernel/security/lockdown"),
    Path("/proc/1/root/sys/kernel/security/lockdown"),
)


def find_lockdown(files: tuple[Path, ...] = _LOCKDOWN) -> str | None:
    """Return the kernel's lockdown level: ``none``, ``integrity`` or ``confidentiality``.

    ``None`` if it cannot be read, mostly because the kernel does not have this feature.
    """
    for path in files:
        try:
            text = path.read_text(encoding="ascii")
        except (OSError, ValueError):
            continue
        # The level in effect is in brackets: security/lockdown/lockdown.c, lockdown_read().
        if level := re.search(r"\[(\w+)\]", text):
            return level[1]
    return None


def find_unsupported(btf: Path = _BTF, files: tuple[Path, ...] = _LOCKDOWN) -> str:
    """Return why the sched probe cannot work on this kernel, empty if it may.

    Only what no restart and no other version of the agent changes.
    """
    if not btf.exists():
        return f"this kernel has no BTF ({btf}): it was built without CONFIG_DEBUG_INFO_BTF"
    if find_lockdown(files) == "confidentiality":
        return (
            "this kernel is locked down (lockdown=confidentiality), so programs may not read "
            "kernel memory"
        )
    return ""
