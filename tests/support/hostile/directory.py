# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A directory of another user, whose files have the names of all that Python could import.

Each of them notes its name when it runs. What the tests start there must run none.
"""

from collections.abc import Mapping
from importlib.metadata import packages_distributions
import os
from pathlib import Path
import subprocess
import sys

from tests.support.waiting import WORK_S

__all__ = ("COMMAND", "HostileDirectory")

# The console script, as users start it.
COMMAND = Path(sys.executable).with_name("sweetpoint")
_NOBODY = 65534
_OURS = {"controller", "actuators", "bcc", "sitecustomize", "usercustomize"}


class HostileDirectory:
    """Makes the directory *path*; ``ran`` is what of it the last ``run`` has run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._notes = path.with_name(f"{path.name}-notes")
        path.mkdir()
        code = f"with open({str(self._notes)!r}, 'a') as notes: notes.write(__name__ + '\\n')\n"
        for name in sys.stdlib_module_names | set(packages_distributions()) | _OURS:
            if name.isidentifier():
                (path / name).mkdir()
                (path / name / "__init__.py").write_text(code)
        if os.geteuid() == 0:
            os.chown(path, _NOBODY, _NOBODY)

    @property
    def ran(self) -> list[str]:
        return self._notes.read_text().split() if self._notes.exists() else []

    def run(
        self, *command: str | Path, environment: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run *command* there to its end; return its code and output."""
        self._notes.unlink(missing_ok=True)
        return subprocess.run(
            list(map(str, command)),
            cwd=self.path,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WORK_S,
            check=False,
        )
