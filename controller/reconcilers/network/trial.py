# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Trial of link shaping in a new network namespace, for ``sweetpoint doctor``."""

from actuators.base import GoneError, RefusedError, no_trace
from actuators.tc.netlink import Netlink, network_namespace
from actuators.tc.shape import ABSENT, CLASS_OF_TIER, MAJOR, Shape, Tree, encode
from actuators.tc.tree import Programs, TcTree
from controller.core.decision import Action
from controller.core.model import Knob, QosClass, Target, TargetKind
from controller.host.facts import enter_new_network_namespace
from controller.probes.bpf.btf import BtfError
from controller.probes.bpf.loader import LoadError
from controller.probes.tc_classifier import Classifier

__all__ = ("trial",)

_RATE = 125_000
_SHAPE = Shape(_RATE, (_RATE, _RATE), (_RATE, _RATE), (_RATE, _RATE))


def trial() -> tuple[bool, str]:
    """Return whether a link can be shaped in both directions, and the detail or the reason.

    To be called in a child process that ends afterwards: the process stays in a new network
    namespace.
    """
    system = CLASS_OF_TIER[QosClass.SYSTEM]
    try:
        import pyroute2  # noqa: F401 - so that the error names the missing package

        classifier = Classifier(major=MAJOR, system_class=system, mark_mask=0xF)
    except (BtfError, ImportError, LoadError, OSError) as error:
        return False, str(error)
    try:
        enter_new_network_namespace()
    except OSError as error:
        return False, f"no network namespace to try it in: {error.strerror}"
    try:
        with Netlink() as netlink:
            ifindex = netlink.add_ifb("trial")
    except (GoneError, RefusedError) as error:
        return False, f"{error} (CONFIG_IFB)"
    target = Target(TargetKind.LINK, network_namespace(), ifindex, "trial")
    value = encode(Tree(_SHAPE, _SHAPE))
    action = Action(target=target, knob=Knob.TC_TREE, previous=ABSENT, value=value, reason="trial")
    outcome = TcTree(Programs(**classifier.program_fds)).apply(action, no_trace)
    classifier.close()
    if outcome.applied != value:
        needs = "CONFIG_NET_SCH_HTB, NET_SCH_INGRESS, NET_CLS_BPF, NET_ACT_MIRRED"
        return False, f"{outcome.message} ({needs})"
    return True, "HTB, ifb, clsact, cls_bpf and redirecting work"
