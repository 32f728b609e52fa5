# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the plugin makes of the reports of several nodes: medians, verdicts, and who is left out."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
import json
import math
from typing import Any

import pytest

from controller.cli.trial_background import INTERRUPTED, State
from controller.config.sections.trial import FEWEST_PAIRS
from controller.trial import analysis
from controller.trial.blocks import Arm, Pair, Work
from deploy import kubectl_sweetpoint as plugin
from tests.deploy.fake_kubectl import HOSTILE
from tests.deploy.pool_reports import LABEL, lie, report
from tests.support.trial import noisy_pairs

# Of nodes and of what enforcing leaves of the suffering.
SIZES = (3, 5, 9)


def members(pages: Iterable[Mapping[str, Any]]) -> list[plugin.Member]:
    """Return what the plugin reads, after the way through JSON."""
    texts = [json.dumps(each) for each in pages]
    rows = [plugin.Row(f"n{n}", status=plugin._parsed(text)) for n, text in enumerate(texts)]
    return [plugin._member(each) for each in rows]


def verdicts(pages: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    return {each.name: each.verdict for each in plugin.pool_of(members(pages)).pooled}


@cache
def _page(seed: int, suffering: float, work: float) -> dict[str, Any]:
    return report(seed, suffering, work)


def pages(pool: int, nodes: int, suffering: float = 1.0, work: float = 1.0) -> list[dict[str, Any]]:
    """Return the reports of *nodes* nodes with drift and bursts, of the pool of this number."""
    return [_page(1000 * pool + node, suffering, work) for node in range(nodes)]


@pytest.mark.parametrize("nodes", SIZES)
def test_of_twenty_pools_without_an_effect_at_most_two_show_one(nodes: int) -> None:
    found = [verdicts(pages(pool, nodes)) for pool in range(20)]
    assert all(each.keys() == {"web", "best-effort work"} for each in found)
    assert sum({*each.values()} != {"no difference shown"} for each in found) <= 2


@pytest.mark.parametrize("nodes", SIZES)
def test_a_clear_effect_is_found(nodes: int) -> None:
    found = [verdicts(pages(pool, nodes, suffering=0.1, work=0.8)) for pool in range(5)]
    assert found == [{"web": "better", "best-effort work": "worse"}] * 5


def test_many_nodes_show_what_none_shows_alone() -> None:
    made = [report(n, pairs=noisy_pairs(n, 6, less=0.04)) for n in range(16)]
    alone = [page["findings"][0]["verdict"] for page in made]
    assert alone.count("better") <= 8
    assert verdicts(made)["web"] == "better"


@pytest.mark.parametrize("nodes", SIZES)
@pytest.mark.parametrize(("suffered", "work"), [(-1.0, 1e5), (1.0, 1e-5)])
def test_one_node_that_lies_makes_no_effect(nodes: int, suffered: float, work: float) -> None:
    found = [verdicts([lie(suffered, work), *pages(pool, nodes - 1)]) for pool in range(20)]
    shown = sum({*each.values()} != {"no difference shown"} for each in found)
    assert shown <= 2


@pytest.mark.parametrize("nodes", [5, 9])
def test_one_node_of_five_that_lies_hides_no_effect(nodes: int) -> None:
    found = [
        verdicts([lie(1.0, 1e5), *pages(pool, nodes - 1, suffering=0.1, work=0.8)])
        for pool in range(5)
    ]
    assert found == [{"web": "better", "best-effort work": "worse"}] * 5


def test_of_three_nodes_one_that_lies_can_hide_an_effect_and_not_turn_it() -> None:
    honest = pages(1, 2, suffering=0.1, work=0.8)
    assert verdicts([lie(1.0, 1e5), *honest]) == {
        "web": "no difference shown",
        "best-effort work": "no difference shown",
    }


@pytest.mark.parametrize("claim", [(1.0, 1.0, 1.0), (-1.0, -1.0, -1.0), (0.0, -1e6, 1e6)])
def test_what_fewer_than_half_claim_is_not_beyond_the_others(claim: plugin._Effect) -> None:
    honest = [(-0.2, -0.3, -0.1), (-0.1, -0.2, 0.0), (-0.3, -0.4, -0.2)]
    middle, _, _ = plugin.median_effect([*honest, claim, claim])
    assert -0.3 <= middle <= -0.1
    middle, low, high = plugin.median_effect([*honest, *honest, claim])
    assert -0.3 <= middle <= -0.1
    assert -0.5 < low <= high < 0.1


def test_two_nodes_have_no_verdict() -> None:
    found = plugin.pool_of(members(pages(1, 2, suffering=0.1)))
    assert len(found.counted) == 2 and found.pooled == []
    lines = [*plugin._report(found)]
    assert lines[1] == "  no verdict of fewer than 3 nodes"
    assert lines[-1].startswith("n1: 30 pairs, order 7: web -")


LEFT_OUT = [
    ({"label": "2026-11-27"}, "its last trial is another one (2026-11-27)"),
    ({"label": ""}, "its last trial is another one (without a label)"),
    ({"configuration": "two"}, "another configuration than most"),
    ({"state": State.KILLED}, "its trial was killed; was the agent's pod started again?"),
    ({"ended": "another command began a pause"}, "ended early: another command began a pause"),
    ({"ended": "pausing hurts web", "hurt": Arm.PAUSE}, "a service was hurt: pausing hurts web"),
    ({"pairs": noisy_pairs(1, 2)}, "fewer than 3 pairs"),
]


@pytest.mark.parametrize(("fields", "why"), LEFT_OUT)
def test_a_node_that_does_not_count_is_named_with_its_reason(
    fields: dict[str, Any], why: str
) -> None:
    made = [*pages(1, 3, suffering=0.3), report(4, **fields)]
    found = plugin.pool_of(members(made))
    assert found.left_out == {"n3": why}
    assert found.pooled == plugin.pool_of(members(made[:3])).pooled
    assert [*plugin._report(found)][-1] == f"n3: left out: {why}"


def test_what_was_measured_until_a_stop_counts() -> None:
    made = [report(n, 0.3, ended=INTERRUPTED) for n in range(3)]
    assert verdicts(made)["web"] == "better"


def test_a_look_at_trials_that_run_says_so() -> None:
    made = [report(n, state=State.RUNNING) for n in range(3)]
    assert "  3 nodes still run; " in [*plugin._report(plugin.pool_of(members(made)))][1]


def test_with_two_hurt_nodes_there_is_no_verdict() -> None:
    hurt = [report(n, ended="enforcing hurts web", hurt=Arm.ENFORCE) for n in (8, 9)]
    made = pages(1, 3, suffering=0.1)
    assert verdicts([*made, hurt[0]])["web"] == "better"
    assert {*verdicts([*made, *hurt]).values()} == {"no verdict"}
    found = plugin.pool_of(members([*made, *hurt]))
    assert found.hurt == ["n3", "n4"]
    assert [*plugin._report(found)][1] == "  no verdict, because 2 nodes were hurt"


BAD = "its figures are none that can be measured"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"trial": {"seed": -1}}, BAD),
        ({"trial": {"pairs": 10**400}}, BAD),
        ({"trial": {"pairs": True}}, BAD),
        ({"effect": [-2, -3, -1]}, BAD),
        ({"effect": [0, 1, -1]}, BAD),
        ({"effect": [0, 1]}, BAD),
        ({"effect": [10**400, 0, 0]}, BAD),
        ({"effect": ["1", 0, 0]}, BAD),
        ({"effect": [True, 0, 0]}, BAD),
        ({"effect": [None, None, None]}, ""),
        ({"effect": {}}, ""),
        ({"kind": [], "name": {}}, ""),
        ({"findings": [{}] * 9000}, BAD),
        (
            {
                "findings": [
                    {"kind": "time", "name": f"{n}", "effect": [0, 0, 0]} for n in range(600)
                ]
            },
            BAD,
        ),
        ({"findings": "x"}, ""),
        ({"arms": 1, "ended": 7, "trial": []}, BAD),
    ],
)
def test_what_no_agent_says_costs_the_node_its_place_and_nothing_else(
    change: dict[str, Any], error: str
) -> None:
    page: dict[str, Any] = report(1)
    if "effect" in change or "kind" in change:
        page["findings"][0].update(change)
    elif isinstance(change.get("trial"), dict):
        page["trial"].update(change["trial"])
    else:
        page.update(change)
    (member,) = members([page])
    assert member.error == error
    assert {*verdicts([page, *pages(1, 3)])} == {"web", "best-effort work"}


def test_names_of_nodes_are_bounded_and_printable() -> None:
    page: dict[str, Any] = report(1)
    page["trial"].update(label=HOSTILE * 999, compared="x" * 999)
    page["ended"] = HOSTILE * 999
    page["findings"] = [{**page["findings"][0], "name": f"{n}{HOSTILE * 999}"} for n in range(500)]
    found = plugin.pool_of(members([page, page, page]))
    lines = [plugin.printable(each) for each in plugin._report(found)]
    assert len(lines) < 40 and all(len(each) < 4000 for each in lines)


def test_a_service_of_few_nodes_is_counted_and_not_judged() -> None:
    page: dict[str, Any] = report(1)
    page["findings"].append({**page["findings"][0], "name": "mine"})
    made = [page, *pages(1, 3)]
    assert "mine" not in verdicts(made)
    assert "  1 outcomes are those of fewer than 3 nodes" in [
        *plugin._report(plugin.pool_of(members(made)))
    ]


def test_it_judges_as_the_analysis_of_one_node_does() -> None:
    """One file cannot import what it has in common with the agent."""
    verdict = analysis.Verdict
    assert (*verdict,) == (plugin._BETTER, plugin._WORSE, plugin._NONE)
    assert (*plugin._MOST_EFFECT,) == (analysis.Kind.TIME, analysis.Kind.WORK, analysis.Kind.COUNT)
    assert plugin._NO_DIFFERENCE == analysis._NO_DIFFERENCE
    assert plugin._LEAST_PAIRS == FEWEST_PAIRS
    for page in pages(1, 3, suffering=0.5, work=0.9):
        (member,) = members([page])
        for finding in page["findings"]:
            effect = member.effects[finding["kind"], finding["name"]]
            assert plugin._verdict(finding["kind"], effect) == finding["verdict"]


def test_completed_pods_are_a_difference() -> None:
    def with_pods(seed: int) -> list[Pair]:
        return [
            Pair(replace(one, work={Work.PODS: 1.0 + seed}), replace(other, work={Work.PODS: 20.0}))
            for one, other in noisy_pairs(seed, 10)
        ]

    found = plugin.pool_of(members([report(seed, pairs=with_pods(seed)) for seed in range(3)]))
    (line,) = (each for each in plugin._report(found) if each.startswith("  best-effort pods"))
    assert line == "  best-effort pods completed (per hour): -18 [-19, -17] on 3 nodes: worse"
    (pods,) = (e for e in plugin._plain_report(found)["findings"] if e["kind"] == "count")
    assert pods["effect"] == [-18.0, -19.0, -17.0]


def test_the_ratio_of_work_is_one_again_in_json() -> None:
    found = plugin._plain_report(plugin.pool_of(members(pages(1, 3, work=0.5))))
    assert found["label"] == LABEL and len(found["nodes"]) == 3
    work = next(each for each in found["findings"] if each["kind"] == "work")
    assert work["effect"][0] == pytest.approx(0.5, abs=0.1)
    assert all(map(math.isfinite, work["effect"]))


A, B = "2026-11-01T00:00:00Z", "2026-11-02T00:00:00Z"


def runs(node: str, label: str = A) -> plugin.Member:
    return plugin.Member(node, state="running", label=label)


def ended(node: str, label: str = A, hurt: str = "") -> plugin.Member:
    return plugin.Member(node, state="ended", label=label, hurt=hurt, ended="x" if hurt else "")


def silent(node: str, error: str = "no answer within 20 s; see --timeout") -> plugin.Member:
    return plugin.Member(node, error=error)


def looked(*looks: list[plugin.Member], watch: plugin.Watch | None = None) -> plugin.Watch:
    found = plugin.Watch() if watch is None else watch
    for each in looks:
        found.note(each)
    return found


@pytest.mark.parametrize(
    ("looks", "may_run", "is_over"),
    [
        ([[]], [], False),
        ([[silent("n1"), silent("n2")]], ["n1", "n2"], False),
        ([[ended("n1"), silent("n2")]], ["n2"], False),
        ([[ended("n1"), silent("n2")], [silent("n1"), ended("n2")]], [], True),
        ([[ended("n1"), silent("n2", "no agent runs here")]], [], True),
        ([[silent("n1", "sweetpoint: no trial was begun")]], [], True),
        ([[runs("n1")], [silent("n1", "no agent runs here")]], ["n1"], False),
        ([[runs("n1")], []], ["n1"], False),
        ([[runs("n1")], [ended("n1")]], [], True),
        ([[runs("n1")], [runs("n1", B)]], [], True),
    ],
)
def test_a_watch_is_over_when_each_end_is_known(
    looks: list[list[plugin.Member]], may_run: list[str], is_over: bool
) -> None:
    watch = looked(*looks)
    assert (watch.may_run, watch.is_over) == (may_run, is_over)


def test_a_watch_of_a_begun_trial_waits_for_the_nodes_where_it_may_have_begun() -> None:
    watch = plugin.Watch(A, ran=["n1"], unsure=["n2"])
    assert (watch.may_run, watch.is_over) == (["n1", "n2"], False)
    looked([silent("n1"), ended("n2", B), silent("n3")], watch=watch)
    assert watch.may_run == ["n1"]


def test_a_watch_keeps_to_one_trial() -> None:
    watch = looked([ended("n1"), ended("n2"), ended("n3"), runs("n4", B)])
    assert (watch.label, watch.running) == (B, ["n4"])
    watch = looked([runs("n1"), ended("n2")], [ended("n1"), runs("n2", B), runs("n3", B)])
    assert (watch.label, watch.is_over) == (A, True)


def test_one_node_that_claims_a_label_does_not_turn_the_watch_away() -> None:
    watch = looked(
        [ended("n1", hurt="pause"), ended("n2", hurt="pause"), runs("n3"), runs("n4", B)]
    )
    assert (watch.label, watch.must_end) == (A, ["n3"])


def test_harm_that_was_told_stays_when_its_node_does_not_answer() -> None:
    bad = [ended("n1", hurt="pause"), ended("n2", hurt="pause")]
    watch = looked([*bad, runs("n3"), runs("n4")], [silent("n1"), bad[1], silent("n3"), runs("n4")])
    assert watch.hurt == ["n1", "n2"]
    assert watch.must_end == ["n3", "n4"]
    looked([], watch=watch)
    assert watch.must_end == ["n3", "n4"]
    looked([silent("n3"), runs("n4")], watch=watch)  # the others left the pool
    assert (watch.hurt, watch.must_end) == (["n1", "n2"], ["n3", "n4"])


def test_harm_of_another_trial_ends_nothing() -> None:
    bad = [ended("n1", B, "pause"), ended("n2", B, "pause")]
    assert looked([*bad, runs("n3")], watch=plugin.Watch(A, ["n3"], [])).must_end == []
    assert looked([*bad, runs("n3")]).must_end == []


def test_a_watch_gives_up_after_many_looks_without_a_node_that_runs() -> None:
    away = plugin._SILENT_LOOKS - 1
    watch = looked([runs("n1")], *[[]] * away, [runs("n1")], *[[silent("n1")]] * away)
    assert not watch.gives_up
    watch.note([])
    assert watch.gives_up and watch.members == [silent("n1")]


def test_a_watch_gives_up_after_many_commands_to_end() -> None:
    watch = looked([runs("n1")])
    watch.stops = plugin._MOST_STOPS
    assert watch.gives_up and not watch.is_over


def test_a_watch_counts_the_pairs_of_its_own_trial() -> None:
    own = replace(runs("n1"), pairs=2, of=30)
    other = replace(runs("n2", B), pairs=9, of=30)
    watch = looked([], watch=plugin.Watch(A, ["n1"], []))
    assert watch.progress() == ""
    watch.note([own, other, silent("n3")])
    assert watch.progress() == "1 of 3 nodes run, 2 of 30 pairs"


@pytest.mark.parametrize(
    ("said", "label"), [("pool", "pool"), ("a\x00b", ""), ("\ud800", ""), (None, "")]
)
def test_a_label_that_cannot_be_a_word_of_a_command_is_none(said: object, label: str) -> None:
    assert plugin._label(said) == label
