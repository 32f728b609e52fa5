# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The command line. Every command imports what it needs when it runs.

``run`` becomes the guardian, which has to stay small: nothing here may import more than the
standard library before it is known which command is wanted.
"""

import argparse
from collections.abc import Sequence
import json
import logging
import os
from pathlib import Path
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from controller.configsections.service_level import ServiceLevelConfig

__all__ = ("main",)

_DONE, _FAILED, _WRONG = 0, 1, 2
_CONFIG = Path("/etc/sweetpoint/config.yaml")
_STATE_DIR = Path("/run/sweetpoint")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in *argv* and return the exit code: 0 done, 1 failed, 2 wrong use."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(
        level=logging.DEBUG if arguments.verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
        stream=sys.stderr,
    )
    command = arguments.command
    try:
        return int(command(arguments))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILED
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sweetpoint",
        description="Lets best-effort work fill a machine without hurting its services.",
        epilog="Start with 'sweetpoint doctor', then 'sweetpoint demo'.",
    )
    parser.add_argument("--verbose", action="store_true", help="log details")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_run(commands)
    _add_doctor(commands)
    _add_demo(commands)
    _add_release(commands)
    _add_retire(commands)
    _add_check(commands)
    _add_schema(commands)
    _add_replay(commands)
    _add_import_koordinator(commands)
    return parser


_Commands = argparse._SubParsersAction  # the only name argparse has for it


def _add_run(commands: "_Commands[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("run", help="the agent: measure, plan, and in enforce mode act")
    _config_option(parser)
    parser.add_argument(
        "--mode", choices=("observe", "enforce"), help="takes the place of the configuration's"
    )
    parser.add_argument("--once", action="store_true", help="measure and plan once, then end")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write a recording (.jsonl.gz)")
    parser.add_argument(
        "--no-guardian",
        action="store_true",
        help="without the parent that restores after a crash; for debugging",
    )
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    from controller import guardian, lock

    if os.geteuid() != 0:
        print("sweetpoint: run needs root; 'sweetpoint doctor' says what for", file=sys.stderr)
        return _FAILED
    code, state_dir = _checked_state_dir(arguments)
    if state_dir is None:
        return code
    try:
        held = lock.Lock(state_dir)
    except lock.LockError as error:
        print(f"sweetpoint: {error}", file=sys.stderr)
        return _WRONG
    if arguments.no_guardian:
        _restore(state_dir)
        return _agent(arguments, guardian.Heartbeat())
    return guardian.run(
        lambda heartbeat: _agent(arguments, heartbeat),
        lock=held,
        restore=lambda: _restore(state_dir),
    )


def _checked_state_dir(arguments: argparse.Namespace) -> tuple[int, Path | None]:
    """Check the configuration in a child, which may grow, and return what the guardian needs."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        code = _FAILED
        try:
            code = _tell_state_dir(arguments, writer)
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as answer:
        text = answer.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return (code, Path(text)) if code == _DONE else (code if code > 0 else _FAILED, None)


def _tell_state_dir(arguments: argparse.Namespace, writer: int) -> int:
    from controller.config import ConfigError, load

    try:
        config = load(arguments.config)
    except ConfigError as error:
        print(f"sweetpoint: {error}", file=sys.stderr)
        return _WRONG
    os.write(writer, os.fsencode(config.state_dir))
    return _DONE


def _agent(arguments: argparse.Namespace, heartbeat: object) -> int:
    # Before numpy's library starts threads: a signal that comes during a tick goes to a thread
    # that does not block it, and a reload would be lost there.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
    from actuators.journal import JournalError
    from controller.config import ConfigError
    from controller.daemon import Agent, Options
    from controller.guardian import Heartbeat
    from controller.host import HostError
    from controller.httpd import HttpError
    from controller.model import Mode

    assert isinstance(heartbeat, Heartbeat)
    options = Options(
        config=arguments.config,
        mode=None if arguments.mode is None else Mode(arguments.mode),
        once=arguments.once,
        record=arguments.record,
    )
    try:
        agent = Agent(options, heartbeat)
    except (ConfigError, HttpError, HostError, JournalError, OSError) as error:
        # Nothing here gets better by trying again, which is what a guardian would do after 1.
        print(f"sweetpoint: {error}", file=sys.stderr)
        return _WRONG
    return agent.run()


def _restore(state_dir: Path) -> bool:
    from controller.release import restore_knobs

    return restore_knobs(state_dir)


def _add_doctor(commands: "_Commands[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("doctor", help="what this host can do, what not, how to get it")
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.set_defaults(command=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    from controller.doctor import main as doctor

    return doctor(as_json=arguments.json)


def _add_demo(commands: "_Commands[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "demo", help="a real service and real batch work, alone, unmanaged and managed"
    )
    from controller.demo.command import add_arguments

    add_arguments(parser)
    parser.set_defaults(command=_demo)


def _demo(arguments: argparse.Namespace) -> int:
    from controller.demo.command import main as demo

    return demo(arguments)


def _add_release(commands: "_Commands[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("release", help="put every knob back as it was")
    parser.add_argument("--stop", action="store_true", help="stop a running agent first")
    parser.add_argument(
        "--state-dir", type=Path, default=_STATE_DIR, help="of the agent (default: %(default)s)"
    )
    parser.set_defaults(command=_release)


def _release(arguments: argparse.Namespace) -> int:
    from controller.release import release

    code = release(arguments.state_dir, stop=arguments.stop)
    if code == _DONE or arguments.stop:
        from controller.kube.mark_note import release_mark

        done, text = release_mark(arguments.state_dir)
        if text:
            print(text, file=sys.stdout if done else sys.stderr)
        code = code if done else _FAILED
    return code


def _add_retire(commands: "_Commands[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("retire", help="stop all agents of a DaemonSet in this cluster")
    parser.add_argument("namespace")
    parser.add_argument("daemonset")
    parser.add_argument(
        "--timeout", type=float, default=300.0, metavar="S", help="seconds (default: %(default)s)"
    )
    parser.add_argument("--kubeconfig", type=Path, help="default: the pod's own service account")
    parser.set_defaults(command=_retire)


def _retire(arguments: argparse.Namespace) -> int:
    from controller.kube.api import Api
    from controller.kube.errors import ApiError, ApiUnreachable
    from controller.kube.retire import RetireError, retire

    try:
        api = Api(arguments.kubeconfig)
        retire(api, arguments.namespace, arguments.daemonset, arguments.timeout)
    except (ApiError, ApiUnreachable, RetireError) as error:
        print(f"sweetpoint: {error}", file=sys.stderr)
        return _FAILED
    return _DONE


def _add_check(commands: "_Commands[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("check", help="check a configuration and show it resolved")
    _config_option(parser)
    parser.add_argument(
        "--ask", action="store_true", help="ask every source of a service level once instead"
    )
    parser.set_defaults(command=_check)


def _check(arguments: argparse.Namespace) -> int:
    from pydantic import TypeAdapter

    from controller.config import Config, ConfigError, load

    try:
        config = load(arguments.config)
    except ConfigError as error:
        print(f"sweetpoint: {error}", file=sys.stderr)
        return _WRONG
    if arguments.ask:
        return _ask(config.service_level)
    print(TypeAdapter(Config).dump_json(config, indent=2).decode())
    return _DONE


def _ask(config: "ServiceLevelConfig | None") -> int:
    from controller.service_level.poll import ask_all

    failed = False
    for source, answer in ask_all(() if config is None else config.sources):
        failed |= isinstance(answer, Exception)
        print(f"{source.service}: {answer}")
    return _FAILED if failed else _DONE


def _add_schema(commands: "_Commands[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("schema", help="JSON schema of a configuration or a profile")
    parser.add_argument("kind", choices=("config", "profile"))
    parser.set_defaults(command=_schema)


def _schema(arguments: argparse.Namespace) -> int:
    from controller.config import json_schemas

    print(json.dumps(json_schemas()[arguments.kind], indent=2))
    return _DONE


def _add_replay(commands: "_Commands[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "replay", help="plan a recording again, with the same or with other settings"
    )
    parser.add_argument("recording", type=Path)
    parser.add_argument(
        "--config", type=Path, help="settings and profiles to use in place of the recorded ones"
    )
    parser.set_defaults(command=_replay)


def _replay(arguments: argparse.Namespace) -> int:
    from controller.config import ConfigError, load
    from controller.record import RecordingError, read, replay

    try:
        settings = None if arguments.config is None else load(arguments.config).settings
        ticks = different = 0
        for entry, plan in replay(read(arguments.recording), settings):
            ticks += 1
            different += plan != entry.plan
            for verdict in plan.verdicts:
                print(f"{plan.time_ns / 1e9:.3f} {verdict.subject}: {verdict.text}")
    except ConfigError as error:
        print(f"sweetpoint: {error}", file=sys.stderr)
        return _WRONG
    except (RecordingError, OSError) as error:
        print(f"sweetpoint: {error}", file=sys.stderr)
        return _FAILED
    print(f"{ticks} ticks, {different} plans differ from the recorded ones")
    return _FAILED if different and settings is None else _DONE


def _add_import_koordinator(commands: "_Commands[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "import-koordinator", help="a configuration and a profile from a slo-controller-config"
    )
    from controller.koordinator.command import add_arguments

    add_arguments(parser)
    parser.set_defaults(command=_import_koordinator)


def _import_koordinator(arguments: argparse.Namespace) -> int:
    from controller.koordinator.command import main as import_koordinator

    return import_koordinator(arguments)


def _config_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", type=Path, default=_CONFIG, help="configuration file (default: %(default)s)"
    )


if __name__ == "__main__":
    sys.exit(main())
