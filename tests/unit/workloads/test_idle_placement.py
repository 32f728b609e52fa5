# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The cgroups on which cpu.idle is set."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from controller.workloads.idle_placement import idle_placement, yields_to

PODS = "/pods"


def levels(
    best_effort: list[str],
    services: list[str],
    others: list[str],
    before: Mapping[str, str] | None = None,
) -> dict[str, str]:
    return dict(idle_placement(best_effort, services, others, before or {}))


def test_best_effort_is_idled_by_the_cgroup_beside_the_services() -> None:
    pods = [f"{PODS}/besteffort/pod1", f"{PODS}/besteffort/pod2"]
    found = levels(pods, [f"{PODS}/burstable/pod3", f"{PODS}/pod4"], ["/system"])
    assert set(found.values()) == {f"{PODS}/besteffort"}
    assert yields_to(f"{PODS}/besteffort", f"{PODS}/burstable/pod3")
    assert yields_to(f"{PODS}/besteffort", f"{PODS}/pod4")


def test_best_effort_in_the_cgroup_of_a_service_is_idled_alone() -> None:
    pods = [f"{PODS}/burstable/pod1", f"{PODS}/besteffort/pod3"]
    found = levels(pods, [f"{PODS}/burstable/pod2"], [])
    assert found == {pods[0]: pods[0], pods[1]: f"{PODS}/besteffort"}


def test_other_processes_below_an_ancestor_exclude_it() -> None:
    batch = ["/batch/night/a", "/batch/night/b"]
    assert set(levels(batch, ["/web"], []).values()) == {"/batch"}
    # /batch/night would gain nothing over the workload's own cgroup: no service is its sibling.
    for others in (["/batch/cron"], ["/batch"], ["/batch/night/x"]):
        assert levels(batch, ["/web"], others) == {path: path for path in batch}


def test_no_higher_than_needed() -> None:
    assert levels(["/pods/batch"], ["/pods/web"], []) == {"/pods/batch": "/pods/batch"}
    assert levels(["/a/b/c"], ["/a/web"], []) == {"/a/b/c": "/a/b"}
    assert levels(["/a/b/c"], ["/a/web", "/other"], []) == {"/a/b/c": "/a/b"}


def test_without_a_service_the_placement_is_kept_where_allowed() -> None:
    before = {"/batch/a": "/batch", "/batch/b": "/batch"}
    assert levels(["/batch/a", "/batch/b"], [], [], before) == before
    assert levels(["/batch/a"], [], ["/batch/cron"], before) == {"/batch/a": "/batch/a"}
    assert levels(["/batch/c"], [], [], before) == {"/batch/c": "/batch/c"}


paths = st.lists(st.sampled_from("abc"), min_size=3, max_size=3).map(lambda p: "/" + "/".join(p))


@given(st.sets(paths), st.sets(paths), st.sets(paths))
def test_only_best_effort_below_and_nothing_to_gain_above(
    best_effort: set[str], services: set[str], others: set[str]
) -> None:
    services -= best_effort
    others -= best_effort
    for path, level in idle_placement(best_effort, services, others, {}).items():
        assert f"{path}/".startswith(f"{level}/")
        assert level.startswith("/")
        foreign = services | others
        assert not any(f"{other}/".startswith(f"{level}/") for other in foreign)
        higher = level.rpartition("/")[0]
        while higher and not any(f"{other}/".startswith(f"{higher}/") for other in foreign):
            assert not any(yields_to(higher, s) and not yields_to(level, s) for s in services)
            higher = higher.rpartition("/")[0]
