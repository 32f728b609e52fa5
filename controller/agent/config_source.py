# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Where the agent's configuration comes from: the file, or after a crash what was in force before.

A reload that is refused keeps the configuration that the agent has, and so does a crash after it:
the files in force are kept in the state directory while an agent runs (``kept_config``), and a
start that finds them goes on with them if the file is refused. A start after an end in order has
nothing to go on with. It refuses the file, and whoever started it sees that.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
import logging
from pathlib import Path

from controller.config.load import Config, ConfigError, load
from controller.config.yaml_document import read_text
from controller.core.model import Mode
from controller.host.facts import online_cpus, present_cpus
from controller.host.kept_config import KeptConfig, keep_config, read_config

__all__ = ("ConfigSource",)

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class ConfigSource:
    """The configuration file, and the copy of the one in force below ``state_dir``.

    ``mode`` overrides the mode in the file. Without ``state_dir`` there is no copy. ``problem`` is
    why ``start`` took the copy; empty: it took the file.
    """

    file: Path
    mode: Mode | None
    state_dir: Path | None = None
    problem: str = ""
    _texts: Mapping[str, str] = field(default_factory=dict)  # of the files last read, by path
    _told: bool = False
    _warned: tuple[str, ...] = ()  # the warnings of the file last read, which were logged

    def load(self) -> Config:
        """Read and check the file and its profiles.

        :raises ConfigError: one of them is invalid.
        :raises OSError: see ``load``.
        """
        texts: dict[str, str] = {}

        def read(path: Path) -> str:
            texts[str(path.absolute())] = text = read_text(path)
            return text

        config = load(self.file, mode=self.mode, read=read)
        self._texts = texts
        for text in config.warnings if config.warnings != self._warned else ():
            _log.warning("%s", text)
        self._warned = config.warnings
        return config

    def start(self) -> Config:
        """Return the configuration to start with.

        :raises ConfigError: the file is invalid, and no agent died that had a valid one.
        :raises OSError: see ``load``.
        """
        try:
            return self.load()
        except ConfigError as error:
            config = self._load_kept()
            if config is None:
                raise
            self.problem = str(error)
            _log.error(
                "%s\nThe agent before this one died: going on with its configuration. "
                "Correct the file and reload",
                error,
            )
            return config

    def keep(self) -> None:
        """Keep the files last read, which are in force now; a failure is logged once."""
        if self.state_dir is None:
            return
        cpus = max(len(online_cpus()), len(present_cpus()))
        try:
            keep_config(self.state_dir, self.file, KeptConfig(self._texts, cpus))
        except OSError as error:
            if not self._told:
                _log.warning(
                    "cannot keep the configuration: %s; after a crash the agent starts only with "
                    "a valid file",
                    error,
                )
            self._told = True

    def _load_kept(self) -> Config | None:
        if self.state_dir is None:
            return None
        try:
            kept = read_config(self.state_dir, self.file)
            if kept is None:
                return None
            config = load(self.file, mode=self.mode, cpus=kept.cpus, read=_reader(kept.texts))
        except (OSError, ValueError, ConfigError) as error:
            _log.warning("the kept configuration cannot be used: %s", error)
            return None
        self._texts = kept.texts
        host = replace(config.settings.host, cpus=len(online_cpus()))
        return replace(config, settings=replace(config.settings, host=host))


def _reader(texts: Mapping[str, str]) -> Callable[[Path], str]:
    def read(path: Path) -> str:
        try:
            return texts[str(path.absolute())]
        except KeyError:
            raise ConfigError([f"{path}: was not kept"]) from None

    return read
