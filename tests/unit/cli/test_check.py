# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint check``: what a configuration means on a host, in a screenful; exit codes."""

import json
from pathlib import Path

import pytest

from controller.cli import summary as summary_module
from controller.cli.main import main
from controller.cli.summary import render, summarize
from controller.config.load import load
from controller.doctor.fact import Fact

HOST = """\
workloads:
  - {name: web, cgroup: /system.slice/nginx.service, class: latency-sensitive, profile: nginx}
  - {name: jobs, cgroup: "/batch.slice/*", class: best-effort}
  - {name: gone, cgroup: /gone.slice, class: best-effort}
  - {name: later, cgroup: "/later/*", class: best-effort}
"""


@pytest.fixture(params=["v1", "v2"])
def mountinfo(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Make a tree of cgroups; the text is that of a host that has it mounted."""
    mount = tmp_path / "cgroup"
    for name in ("system.slice/nginx.service", "batch.slice/one", "batch.slice/two\x1b[31m"):
        folder = mount / name
        folder.mkdir(parents=True)
        (folder / "cpu.max").write_text("max 100000\n")
    (mount / "cgroup.controllers").write_text("cpu memory io\n")
    kind = "cgroup cgroup rw,cpu" if request.param == "v1" else "cgroup2 cgroup2 rw"
    return f"30 25 0:26 / {mount} rw,relatime - {kind}\n"


def write(folder: Path, text: str) -> Path:
    file = folder / "config.yaml"
    file.write_text(text)
    return file


def test_trials_that_begin_by_themselves(tmp_path: Path, mountinfo: str) -> None:
    def trials(section: str) -> list[str]:
        policies = "policies: [{name: canary, set: {reserve: 0cpu}}]\n"
        config = load(write(tmp_path, f"{HOST}{policies}{section}"))
        text = render(summarize(config, mountinfo))
        return [line for line in text.splitlines() if line.startswith("trials")]

    assert trials("") == []
    assert trials("trial: {enabled: true, for: 2h}\n") == [
        "trials begin by themselves: enforcing and paused, 2h each"
    ]
    assert trials("trial: {enabled: true, policy: canary}\n") == [
        "trials begin by themselves: with and without policy canary, 24h each"
    ]


def test_workloads_and_what_is_missing(tmp_path: Path, mountinfo: str) -> None:
    summary = summarize(load(write(tmp_path, HOST)), mountinfo)
    assert [(each.name, len(each.found), each.problem) for each in summary.workloads] == [
        ("web", 1, ""),
        ("jobs", 2, ""),
        ("gone", 0, "does not exist now"),
        ("later", 0, "none now"),
    ]
    (profile,) = summary.profiles
    assert (profile.name, profile.services) == ("nginx", ("web",))
    assert [(each.indicator, each.sweet_point) for each in profile.indicators] == [
        ("runq_delay_p99", "2ms until learned"),
        ("runq_p99", "4ms until learned"),
        ("cpi", "none until learned"),
        ("cpu_per_packet", "none until learned"),
        ("net_backlog", "1ms"),
    ]
    assert profile.indicators[4].off == "no section network"
    knobs = {each.knob: each for each in summary.knobs}
    assert "network" in knobs["tc.ceiling"].off
    # Whatever this machine has: nginx's profile says nothing about memory.
    assert knobs["memory.high"].off
    # The guard needs no sweet point.
    guard = knobs["memory.max"]
    assert bool(guard.off) is not guard.have
    text = HOST + "memory: {guard: false}\n"
    summary = summarize(load(write(tmp_path, text)), mountinfo)
    (guard,) = (each for each in summary.knobs if each.knob == "memory.max")
    assert guard.off == "memory: guard is false" or not guard.have


def test_the_text_fits_on_a_screen_and_has_no_control_characters(
    tmp_path: Path, mountinfo: str
) -> None:
    text = render(summarize(load(write(tmp_path, HOST)), mountinfo))
    lines = text.splitlines()
    assert len(lines) <= 25
    # Paths and reasons come last; the tables before them fit.
    assert all(len(line) <= 110 for line in lines)
    assert text.replace("\n", "").isprintable()
    assert "web    latency-sensitive  nginx  /system.slice/nginx.service  1 cgroup" in text


def test_a_long_list_is_cut(tmp_path: Path, mountinfo: str) -> None:
    rules = "".join(f"  - {{name: w{i}, cgroup: /w{i}, class: system}}\n" for i in range(40))
    text = render(summarize(load(write(tmp_path, HOST + rules)), mountinfo))
    assert "  ... and 32 more (--json lists all)" in text


def test_names_of_cgroups_cannot_write_to_the_terminal(tmp_path: Path, mountinfo: str) -> None:
    # The inner one is left out, with its name in the text.
    nested = '  - {name: in, cgroup: "/batch.slice/two*/x", class: best-effort}\n'
    mount = next(tmp_path.glob("cgroup/batch.slice/two*"))
    (mount / "x").mkdir()
    (mount / "x" / "cpu.max").write_text("max 100000\n")
    summary = summarize(load(write(tmp_path, HOST + nested)), mountinfo)
    assert any("\x1b" in text for text in summary.left_out)
    assert "left out" in render(summary)
    assert "\x1b" not in render(summary)


def test_pods_of_a_node(tmp_path: Path, mountinfo: str) -> None:
    uid = "0a1b2c3d-0000-4000-8000-000000000001"
    (tmp_path / "cgroup/kubepods/besteffort" / f"pod{uid}").mkdir(parents=True)
    summary = summarize(load(write(tmp_path, "kubernetes: {node: n1}\n")), mountinfo)
    assert summary.pods is not None
    assert (summary.pods.node, summary.pods.roots, summary.pods.pods) == ("n1", ("/kubepods",), 1)
    # Pods can select any profile.
    assert {each.name for each in summary.profiles} >= {"default", "nginx", "redis", "memcached"}
    assert "Pods of node n1: 1 now (/kubepods)" in render(summary)


CLASSES = """\
kubernetes: {node: n1}
resctrl: {classes: {front: {l3: ["0%", "50%"], mb: "30%"}}}
io: {classes: {logs: {weight: 50, limits: {/dev/sdx: {read: 10MB/s}}}}}
"""


@pytest.mark.parametrize("have", [False, True])
def test_classes_and_the_cpus_of_one_pod_alone(
    tmp_path: Path, mountinfo: str, have: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("resctrl", "io.max, io.weight", "cpuset.cpus")
    facts = [
        Fact(name=name, have=have, detail=f"as {name} is", needed_for="", how="") for name in names
    ]
    monkeypatch.setattr(summary_module, "find_knobs", lambda: tuple(facts))
    summary = summarize(load(write(tmp_path, CLASSES)), mountinfo)
    off = ("", "") if have else ("as resctrl is", "as io.max, io.weight is")
    assert [(each.name, each.limits, each.off) for each in summary.classes] == [
        ("front", "l3 0% to 50%, mb 30%", off[0]),
        ("logs", "weight 50, limits on /dev/sdx", off[1]),
    ]
    isolation = summary.knobs[-1]
    assert (isolation.knob, isolation.have) == ("cpuset.cpus", have)
    assert (isolation.now if have else isolation.off) == "as cpuset.cpus is"
    lines = render(summary).splitlines()
    (line,) = (each.split() for each in lines if each.startswith("  cpuset.cpus "))
    assert line == ["cpuset.cpus", "cpu", "used" if have else "off", "as", "cpuset.cpus", "is"]
    assert "Classes of other workloads" in lines

    text = CLASSES.replace("n1}", "n1, static_isolation: false}")
    summary = summarize(load(write(tmp_path, text)), mountinfo)
    if have:
        assert summary.knobs[-1].off == "kubernetes: static_isolation is false"
    summary = summarize(load(write(tmp_path, HOST)), mountinfo)
    assert not summary.classes and all(each.knob != "cpuset.cpus" for each in summary.knobs)


def test_on_this_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, HOST)
    assert main(["check", "--config", str(file)]) == 0
    assert capsys.readouterr().out.startswith(f"{file}: valid\n")
    assert main(["check", "--json", "--config", str(file)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["mode"] == "observe"
    assert [each["name"] for each in found["workloads"]] == ["web", "jobs", "gone", "later"]
    assert main(["check", "--resolved", "--config", str(file)]) == 0
    again = write(tmp_path, capsys.readouterr().out)
    assert main(["check", "--config", str(again)]) == 0


def test_an_invalid_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, "mod: observe\n" + HOST)
    for option in ([], ["--json"], ["--resolved"]):
        assert main(["check", *option, "--config", str(file)]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert "did you mean mode?" in printed.err


POLICIES = """\
policies:
  - {name: night, times: [{from: "22:00", until: "06:00"}], set: {reserve: 500mcpu}}
  - {name: canary, nodes: {matchLabels: {pool: canary}}, set: {mode: observe}}
"""
FLEET = f"kubernetes: {{node: n1}}\nmode: enforce\n{POLICIES}"


def test_policies_of_a_node_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(write(tmp_path, FLEET))

    def run(*options: str) -> list[str]:
        assert main(["check", "--config", file, *options]) == 0
        return capsys.readouterr().out.splitlines()

    noon, night = ("--at", "2026-11-27T13:00+01:00"), ("--at", "2026-11-27T23:30:00Z")
    lines = run(*noon)
    assert lines[1].startswith("mode observe,")
    assert lines[2].startswith("policies in force: none of 2; next change 2026-11-27 ")
    assert lines[3] == (
        "node labels are not known, so the mode is observe (see --node-labels): canary"
    )
    lines = run("--node-labels", "pool=prod,zone=a", *noon)
    assert lines[1].startswith("mode enforce,")
    assert not any("not known" in line for line in lines)
    lines = run("--node-labels", "pool=canary", *night)
    assert lines[1].startswith("mode observe,")
    until = "night (until 2026-11-28 06:00 UTC), canary (node labels: pool=canary); next change "
    assert lines[2].startswith(f"policies in force: {until}2026-11-28 ")
    (found, *_) = [json.loads("\n".join(run("--json", "--node-labels", "a=b", *night)))["policies"]]
    assert [(each["name"], each["in_force"]) for each in found["policies"]] == [
        ("night", True),
        ("canary", False),
    ]
    assert found["next_change_s"] == 1795845600.0
    # The file is printed whatever is in force, and is the same again.
    text = "\n".join(run("--resolved", "--node-labels", "pool=canary", *night))
    again = load(write(tmp_path, text), labels={})
    assert [each.name for each in again.policies] == ["night", "canary"]
    assert again.settings.mode == "enforce"


def test_with_policies_the_text_still_fits_on_a_screen(tmp_path: Path, mountinfo: str) -> None:
    config = load(write(tmp_path, HOST + POLICIES), now_s=1795845600.0 - 60)
    lines = render(summarize(config, mountinfo)).splitlines()
    assert "policies in force: night (until 2026-11-28 06:00 UTC); next change" in "\n".join(lines)
    assert len(lines) <= 25


@pytest.mark.parametrize("text", ["noon", "2026-13-01", "0001-01-01T00:00", "9999-12-31T23:59Z"])
def test_what_is_no_time(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["check", "--config", str(write(tmp_path, FLEET)), "--at", text])
    assert caught.value.code == 2
    assert "is not a time such as 2026-11-27T08:00+01:00" in capsys.readouterr().err
