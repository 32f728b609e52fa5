# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Where sched-idle belongs."""

from hypothesis import given
from hypothesis import strategies as st

from controller.control.idle_level import gives_way, idle_levels

KUBE = "/kubepods"


def test_kubernetes_pods_of_best_effort_are_idled_by_their_qos_cgroup() -> None:
    pods = [f"{KUBE}/besteffort/pod1", f"{KUBE}/besteffort/pod2"]
    levels = idle_levels(pods, [f"{KUBE}/burstable/pod3", f"{KUBE}/pod4"], ["/system"])
    assert set(levels.values()) == {f"{KUBE}/besteffort"}
    assert gives_way(f"{KUBE}/besteffort", f"{KUBE}/burstable/pod3")
    assert gives_way(f"{KUBE}/besteffort", f"{KUBE}/pod4")


def test_a_lowered_pod_in_the_qos_cgroup_of_a_service_is_idled_alone() -> None:
    others = [f"{KUBE}/burstable/pod2"]
    levels = idle_levels([f"{KUBE}/burstable/pod1", f"{KUBE}/besteffort/pod3"], others, [])
    assert levels[f"{KUBE}/burstable/pod1"] == f"{KUBE}/burstable/pod1"
    assert levels[f"{KUBE}/besteffort/pod3"] == f"{KUBE}/besteffort"


def test_processes_of_nobody_we_know_keep_idle_below_them() -> None:
    batch = ["/batch/night/a", "/batch/night/b"]
    assert set(idle_levels(batch, ["/web"], []).values()) == {"/batch"}
    assert set(idle_levels(batch, ["/web"], ["/batch/cron"]).values()) == {"/batch/night"}
    assert set(idle_levels(batch, ["/web"], ["/batch"]).values()) == {"/batch/night"}
    assert idle_levels(batch, ["/web"], ["/batch/night/x"]) == {path: path for path in batch}


def test_the_root_is_never_idled() -> None:
    assert idle_levels(["/a/b"], [], []) == {"/a/b": "/a"}


paths = st.lists(st.sampled_from("abc"), min_size=3, max_size=3).map(lambda p: "/" + "/".join(p))


@given(st.sets(paths), st.sets(paths), st.sets(paths))
def test_highest_cgroup_that_holds_no_other_work(
    best_effort: set[str], others: set[str], strangers: set[str]
) -> None:
    others -= best_effort
    strangers -= best_effort
    for path, level in idle_levels(best_effort, others, strangers).items():
        assert f"{path}/".startswith(f"{level}/")
        assert level.startswith("/")
        foreign = others | strangers
        assert not any(f"{other}/".startswith(f"{level}/") for other in foreign)
        parent = level.rpartition("/")[0]
        assert not parent or any(other.startswith(f"{parent}/") for other in foreign)
