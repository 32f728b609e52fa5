# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Where the agent's configuration comes from: the file, or after a crash what was in force before.

A reload that is refused keeps the configuration that the agent has, and so does a crash after it:
the files in force are kept in the state directory while an agent runs (``kept_config``), and a
start that finds them goes on with them if the file is refused. A start after an end in order has
nothing to go on with. It refuses the file, and whoever started it sees that.

When other policies come into force, the texts in force lead to the new configuration (``adapt``).
So a file that is being edited does not matter.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
import hashlib
import json
import logging
from pathlib import Path

from controller.agent.policy_clock import PolicyClock
from controller.config.candidate import Candidate
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
    why ``start`` took the copy; empty: it took the file. ``clock`` says when other policies are in
    force. ``digest`` is that of the texts in force, whichever policies are.
    """

    file: Path
    mode: Mode | None
    state_dir: Path | None = None
    problem: str = ""
    digest: str = ""
    clock: PolicyClock = field(default_factory=PolicyClock)
    _read: Mapping[str, str] = field(default_factory=dict)  # texts of the files last read, by path
    _texts: Mapping[str, str] = field(default_factory=dict)  # those in force
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

        config = self._load(read)
        self._read = texts
        for text in config.warnings if config.warnings != self._warned else ():
            _log.warning("%s", text)
        self._warned = config.warnings
        return config

    def adapt(self) -> Config:
        """Return the configuration that the texts in force give with the policies in force now.

        No file of the configuration is read. The candidate of a trial counts here alone: a file
        is valid or not without it.

        :raises ConfigError: it is invalid.
        :raises OSError: see ``load``.
        """
        candidate = self.clock.candidate
        config = self._load(_reader(self._texts), every_policy=False, candidate=candidate)
        self._read = self._texts
        return config

    def _load(
        self,
        read: Callable[[Path], str],
        *,
        cpus: int | None = None,
        every_policy: bool = True,
        candidate: Candidate | None = None,
    ) -> Config:
        labels, now_s, paused = self.clock.situation
        return load(
            self.file,
            mode=self.mode,
            cpus=cpus,
            read=read,
            labels=labels,
            now_s=now_s,
            paused=paused,
            every_policy=every_policy,
            candidate=candidate,
        )

    def take(self, config: Config) -> None:
        """Note that *config*, which was returned last, is in force."""
        self._texts = self._read
        self.digest = hashlib.sha256(json.dumps(sorted(self._texts.items())).encode()).hexdigest()
        self.clock.follow(config)

    def start(self) -> Config:
        """Return the configuration to start with.

        :raises ConfigError: the file is invalid, and no agent died that had a valid one.
        :raises OSError: see ``load``.
        """
        try:
            config = self.load()
            self.take(config)
        except ConfigError as error:
            kept = self._load_kept()
            if kept is None:
                raise
            config = kept
            self.problem = str(error)
            _log.error(
                "%s\nThe agent before this one died: going on with its configuration. "
                "Correct the file and reload",
                error,
            )
        return config

    def keep(self) -> None:
        """Keep the texts in force in the state directory; a failure is logged once."""
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
            config = self._load(_reader(kept.texts), cpus=kept.cpus)
        except (OSError, ValueError, ConfigError) as error:
            _log.warning("the kept configuration cannot be used: %s", error)
            return None
        self._read = kept.texts
        self.take(config)
        host = replace(config.settings.host, cpus=len(online_cpus()))
        return replace(config, settings=replace(config.settings, host=host))


def _reader(texts: Mapping[str, str]) -> Callable[[Path], str]:
    def read(path: Path) -> str:
        try:
            return texts[str(path.absolute())]
        except KeyError:
            raise ConfigError([f"{path}: was not kept"]) from None

    return read
