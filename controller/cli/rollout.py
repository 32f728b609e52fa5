# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint rollout``: the controller that promotes a profile or rolls it back, per cluster."""

import argparse
import os
from pathlib import Path
import signal
import uuid

from controller.cli.common import DONE, FAILED, WRONG, fail, whole_number

__all__ = ("EXAMPLE", "HELP", "add_arguments", "main")

HELP = "judge a profile on canary nodes, and promote it or roll it back (one per cluster)"
EXAMPLE = "sweetpoint rollout --namespace sweetpoint-system"

_ENDS = {signal.SIGTERM, signal.SIGINT}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sub-command to *parser*."""
    parser.add_argument(
        "--namespace",
        default=os.environ.get("POD_NAMESPACE", "sweetpoint-system"),
        help="namespace of both ConfigMaps and of the Lease (default: POD_NAMESPACE, without it "
        "sweetpoint-system)",
    )
    for option, name, text in (
        ("--rollout", "sweetpoint-rollout", "ConfigMap of the rollout, and name of the Lease"),
        ("--profiles", "sweetpoint-profiles", "ConfigMap with the profiles"),
    ):
        parser.add_argument(
            option, default=name, metavar="NAME", help=f"{text} (default: %(default)s)"
        )
    parser.add_argument(
        "--kubeconfig", type=Path, metavar="FILE", help="default: the pod's service account"
    )
    parser.add_argument(
        "--metrics-port", type=whole_number, metavar="PORT", help="serve /metrics there"
    )


def main(arguments: argparse.Namespace) -> int:
    """Return the exit code: 0 ended by a signal, 1 broken, 2 wrong options or kubeconfig."""
    from prometheus_client import CollectorRegistry, start_http_server

    from controller.kube.client.api import Api
    from controller.kube.client.errors import ApiUnreachable
    from controller.kube.client.worker import Worker
    from controller.kube.events import Events
    from controller.kube.lease import Lease
    from controller.rollout.controller import Controller
    from controller.rollout.loop import Loop
    from controller.rollout.metrics import RolloutCollector

    api, holder = Api(arguments.kubeconfig), f"{os.uname().nodename}_{uuid.uuid4().hex[:8]}"
    try:
        api.load()  # what is wrong in a file stays so, while a server that is away comes back
    except ApiUnreachable as error:
        return fail(error, WRONG)
    # Before any thread starts, because each one inherits it: else a signal would end the process.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    worker = Worker(api)
    try:
        names = arguments.namespace, arguments.rollout
        events = Events(api, worker, holder)
        controller = Controller(api, events, *names, arguments.profiles)
        loop = Loop(controller, Lease(api, *names, holder))
        if arguments.metrics_port is not None:
            registry = CollectorRegistry()
            registry.register(RolloutCollector(loop.seen))
            start_http_server(arguments.metrics_port, registry=registry)
        loop.run(lambda seconds: signal.sigtimedwait(_ENDS, seconds) is not None)
    except (ValueError, OverflowError) as error:  # a name or a port that cannot be one
        return fail(error, WRONG)
    except OSError as error:
        return fail(f"port {arguments.metrics_port}: {error}", FAILED)
    finally:
        worker.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return DONE
