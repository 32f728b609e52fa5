# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Python programs of this project as child processes that import nothing from where they start.

``python -m`` and ``python -c`` search the current directory before the standard library. A command
that root starts in a directory of another user would run that user's files as root. The parent,
a console script, does not search it. Its children are started by this file: with ``-P``, which
leaves the directory out, and they work in ``/``. They find this project where this file lies, also
where it is not installed, and all else as the parent does.
"""

import os
from pathlib import Path
import runpy
import sys

__all__ = ("python_child",)


def python_child(module: str, *arguments: str) -> list[str]:
    """Return the command that runs *module* as ``python -m`` would, in the directory ``/``.

    Paths in *arguments* have to be absolute.
    """
    return [sys.executable, "-P", str(Path(__file__).absolute()), module, *arguments]


def _run() -> None:
    os.chdir("/")
    # At the end, so that nothing beside this project takes the place of a module of Python.
    sys.path.append(str(Path(__file__).parents[2]))
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _run()
