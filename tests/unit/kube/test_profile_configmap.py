# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Changes of a ConfigMap: the profiles in force, the state, and the Events."""

from collections.abc import Mapping
from functools import partial
import json
from pathlib import Path
from typing import Any

from controller.kube.client.api import Api
from controller.kube.client.worker import Worker
from controller.kube.events import Events
from controller.kube.profile_configmap import ClusterProfiles, ConfigMapProfiles
from controller.kube.state import Reload
from tests.support.kube.api_stand_in import ApiStandIn
from tests.support.kube.pod_server import PodServer
from tests.support.loops.closed_loop import make_settings, make_spec
from tests.support.waiting import eventually

GOLD = "name: gold\nindicators: {runq_p99: {sweet_point: 3ms, window: 1s}}\n"
TICK_NS = 2 * 10**8


def found(data: object, uid: str = "u1", **more: object) -> dict[str, Any]:
    return {"metadata": {"uid": uid, "resourceVersion": "7"}, "data": data, **more}


def profiles() -> ClusterProfiles:
    times = iter(range(100, 200))
    return ClusterProfiles(
        "ops", "tuning", tick_ns=TICK_NS, cpus=4, clock=lambda: float(next(times))
    )


def test_the_state_before_the_first_read() -> None:
    state = profiles().state
    assert (state.config_map, state.result, state.applied_at_s) == ("ops/tuning", None, None)
    assert (dict(state.profiles), dict(state.reloads)) == (
        {},
        {"applied": 0, "failed": 0, "missing": 0},
    )


def test_a_change_of_its_metadata_is_no_change_of_the_profiles() -> None:
    kept = profiles()
    kept.update(found({"gold.yaml": GOLD}))
    before = kept.state
    noted = found({"gold.yaml": GOLD})
    noted["metadata"] |= {"resourceVersion": "8", "annotations": {"a": "b"}}
    kept.update(noted)
    assert kept.state is before
    kept.update(found({"gold.yaml": GOLD}, uid="u2"))
    assert kept.state.uid == "u2"


def test_where_a_rollout_has_put_policies_in_force_is_read_and_checked() -> None:
    cluster = profiles()

    def update(text: str | None) -> Mapping[str, str] | None:
        config_map = found({})
        if text is not None:
            config_map["metadata"] |= {"annotations": {"sweetpoint.dev/policies": text}}
        cluster.update(config_map)
        return cluster.state.policies

    assert cluster.state.policies is None
    assert update(None) == {}
    assert update('{"canary": "everywhere"}') == {"canary": "everywhere"}
    assert cluster.state.note == "profiles in force: none; policy canary everywhere"
    for wrong in ("x", "{}", "[]", '{"canary": "there"}', '{"A": "nowhere"}', '{"a": ["nowhere"]}'):
        assert update(wrong) == {"canary": "everywhere"}
        assert cluster.state.problems and cluster.state.result is Reload.FAILED
    many = {f"p{number}": "nowhere" for number in range(17)}
    assert update(json.dumps(many)) == {"canary": "everywhere"}
    assert update(None) == {}


def test_an_invalid_change_keeps_the_profiles_and_a_valid_one_replaces_them() -> None:
    kept = profiles()
    kept.update(found({"gold.yaml": GOLD}))
    good = kept.state
    assert good.result is Reload.APPLIED and good.applied_at_s == 100.0 and good.uid == "u1"
    assert good.note == "profiles in force: gold"
    for bad in (
        found({"gold.yaml": GOLD, "bad.yaml": "name: bad\n"}),
        found({"gold.yaml": GOLD.replace("3ms", "3")}),
        found([1]),
        found({"gold.yaml": GOLD}, binaryData={"x": "AA=="}),
    ):
        kept.update(bad)
        assert kept.state.result is Reload.FAILED
        assert kept.state.profiles is good.profiles
        assert (kept.state.applied_at_s, kept.state.digest) == (100.0, good.digest)
        assert kept.state.note.startswith("ConfigMap ops/tuning: ")
        assert kept.state.note.endswith("; the profiles stay as they were")
    kept.update(found({"gold.yaml": GOLD.replace("3ms", "4ms")}, uid="u2"))
    assert kept.state.profiles["gold"].indicators[0].sweet_point == 4e6
    assert (kept.state.applied_at_s, kept.state.problems, kept.state.uid) == (101.0, (), "u2")
    assert kept.state.digest not in ("", good.digest)
    assert dict(kept.state.reloads) == {"applied": 2, "failed": 4, "missing": 0}
    assert good.profiles["gold"].indicators[0].sweet_point == 3e6


def test_a_deletion_keeps_the_profiles_and_an_empty_configmap_removes_them() -> None:
    kept = profiles()
    kept.update(None)
    assert kept.state.result is Reload.MISSING
    kept.update(found({"gold.yaml": GOLD}))
    kept.update(None)
    assert (kept.state.result, set(kept.state.profiles)) == (Reload.MISSING, {"gold"})
    assert kept.state.note == (
        "ConfigMap ops/tuning: does not exist; the profiles stay as they were"
    )
    kept.update(found(None))
    assert (kept.state.result, dict(kept.state.profiles)) == (Reload.APPLIED, {})
    assert kept.state.note == "profiles in force: none"


def test_the_note_has_only_the_first_problems() -> None:
    kept = profiles()
    kept.update(found({f"p{i}.yaml": "x" for i in range(9)}))
    assert len(kept.state.problems) == 9
    assert "p2.yaml" in kept.state.note and "p3.yaml" not in kept.state.note
    assert "and 6 more problems" in kept.state.note


def test_another_control_period_is_validated_again() -> None:
    kept = profiles()
    kept.reconfigure(tick_ns=TICK_NS * 2, cpus=4)
    assert kept.state.result is None
    kept.update(found({"gold.yaml": GOLD}))
    before = kept.state
    kept.reconfigure(tick_ns=TICK_NS * 2, cpus=4)
    assert kept.state is before
    kept.reconfigure(tick_ns=TICK_NS, cpus=4)
    gains = [state.profiles["gold"].indicators[0].gains for state in (before, kept.state)]
    assert gains[0] != gains[1]  # gains depend on the period
    kept.reconfigure(tick_ns=10**10, cpus=4)
    assert kept.state.result is Reload.FAILED
    assert "the tick is longer than the window of runq_p99" in kept.state.note
    assert set(kept.state.profiles) == {"gold"}


def changed(profiles: ConfigMapProfiles, times: int) -> bool:
    state = profiles.state
    return state is not None and sum(state.reloads.values()) == times


def test_only_changes_make_events(tmp_path: Path) -> None:
    def named(**data: str) -> dict[str, Any]:
        raw = found(data)
        raw["metadata"] |= {"namespace": "ops", "name": "tuning"}
        return raw

    with PodServer(tmp_path) as maps, ApiStandIn() as server:
        maps.pods = [named(**{"gold.yaml": GOLD})]
        api = Api(server.kubeconfig(tmp_path / "kubeconfig"))
        worker = Worker(api)
        profiles = ConfigMapProfiles(
            Api(maps.kubeconfig), Events(api, worker, "n1"), ("ops", "tuning")
        )
        try:
            profiles.merge_into(make_settings(make_spec(1e6)))
            for number, text in enumerate((None, "nonsense", GOLD), 1):
                if text is not None:
                    maps.send_event("MODIFIED", named(**{"gold.yaml": text}))
                eventually(f"change {number}", partial(changed, profiles, number))
                profiles.publish()
        finally:
            profiles.close()
            worker.close()
    assert profiles.failure is None and worker.failure is None
    reasons = [body["reason"] for path, body in server.objects.items() if "/events/" in path]
    assert reasons == ["ProfilesRefused", "ProfilesApplied"]


def test_a_wrong_profile_does_not_keep_a_policy_from_its_reach() -> None:
    cluster = profiles()
    config_map = found({"default.yaml": "indicators: 7\n"})
    config_map["metadata"] |= {"annotations": {"sweetpoint.dev/policies": '{"canary": "nowhere"}'}}
    cluster.update(config_map)
    assert cluster.state.result is Reload.FAILED
    assert cluster.state.policies == {"canary": "nowhere"}
