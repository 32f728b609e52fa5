# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Commands of the quick start and of the chart's notes: they exist, and their values are valid."""

import re
import subprocess

from helm_python import Chart, HelmError
import pytest
import yaml

from tests.deploy.chart import CASES, find, render
from tests.deploy.shell_commands import KUBECTL, chart_values, problems
from tests.support import shell
from tests.support.chart import texts
from tests.support.needs import needs_program
from tests.support.quick_start import quick_start
from tools.chart.__main__ import CHART

ROOT = CHART.parents[1]
NAMESPACE = "sweetpoint-system"
# Commands of the shell in the quick start that need no check.
_SHELL = ("export",)
_WITH_VALUES = (["helm", "install"], ["helm", "upgrade"])


def notes(values: dict[str, object]) -> str:
    with Chart.load(CHART) as chart:
        files = texts(chart, values, "sweetpoint", NAMESPACE)
    return next(text for path, text in files.items() if path.endswith("NOTES.txt"))


def commands_in(text: str) -> list[list[str]]:
    """Return the commands in the notes: the lines that are indented, with what continues them."""
    joined = text.replace("\\\n", " ")
    return [
        words for line in re.findall(r"^  (.*)$", joined, re.M) for words in shell.commands(line)
    ]


def check(commands: list[list[str]]) -> None:
    """Check the commands, and what the chart makes of the values in those of Helm."""
    wrong = {" ".join(each): list(problems(each)) for each in commands}
    assert not {command: why for command, why in wrong.items() if why}
    given = [chart_values(each) for each in commands if each[:2] in _WITH_VALUES]
    assert given
    for values in given:
        assert find(render(values), "DaemonSet")["metadata"]["name"] == "sweetpoint"
    for words in commands:
        if "daemonset/sweetpoint" in words:
            assert words[:3] == ["kubectl", "--namespace", NAMESPACE]


def test_commands_of_the_quick_start() -> None:
    commands = quick_start()
    programs = {words[0] for words in commands}
    assert programs == {"docker", "kind", "k3s", "kubectl", "helm", *_SHELL}
    check([words for words in commands if words[0] not in _SHELL])


def test_the_quick_start_installs_the_image_that_it_builds() -> None:
    commands = quick_start()
    (build,) = (words for words in commands if words[:2] == ["docker", "build"])
    (install,) = (words for words in commands if words[:2] == ["helm", "install"])
    image = chart_values(install)["image"]
    assert f"{image['repository']}:{image['tag']}" == build[build.index("--tag") + 1]
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    assert image["tag"] == version
    used = [word for words in commands for word in words if word.startswith("sweetpoint:")]
    assert set(used) == {f"sweetpoint:{version}"}
    assert "ARG BASE\n" in (ROOT / "deploy/Dockerfile").read_text()


@pytest.mark.parametrize("name", sorted({case.name for case in CASES}))
def test_commands_of_the_notes(name: str) -> None:
    values = yaml.safe_load((CHART / "ci" / f"{name}-values.yaml").read_text())
    text = notes(values)
    agents = f"daemonset/{values.get('fullnameOverride', 'sweetpoint')}"
    assert agents in text
    check(commands_in(text.replace(agents, "daemonset/sweetpoint")))
    assert all(len(line) <= 100 for line in text.splitlines() if not line.startswith("  "))


def test_notes_say_what_runs_and_how_to_go_on() -> None:
    text = notes({})
    for what in ("mode observe", "port-forward", "networkPolicy.from", "advise", "mode=enforce"):
        assert what in text
    assert "helm uninstall" in text
    enforcing = notes({"mode": "enforce", "http": {"tokenSecret": "pages"}})
    assert "mode=enforce" not in enforcing
    assert "mode=observe" in enforcing
    assert "Secret pages" in enforcing
    assert "networkPolicy.from" not in enforcing


def test_without_an_image_the_chart_says_how_to_get_one() -> None:
    with Chart.load(CHART) as chart, pytest.raises(HelmError) as error:
        chart.render({}, name="sweetpoint", namespace=NAMESPACE)
    assert "image.repository is not set" in str(error.value)
    assert "deploy/Dockerfile" in str(error.value)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("kubectl frobnicate", "no command"),
        ("kubectl --namespace x exec y --frob", "unknown option --frob"),
        ("helm install sweetpoint deploy/charts", "no file deploy/charts"),
        ("kubectl exec x -- /opt/sweetpoint/bin/sweetpoint top --twice", "--twice"),
    ],
)
def test_wrong_commands_are_found(command: str, why: str) -> None:
    (words,) = shell.commands(command)
    assert any(why in each for each in problems(words))


@needs_program("kubectl")
@pytest.mark.parametrize("command", sorted(KUBECTL))
def test_kubectl_has_the_commands_of_the_documents(command: str) -> None:
    done = subprocess.run(
        ["kubectl", *command.split(), "--help"], capture_output=True, text=True, check=True
    )
    assert not [option for option in KUBECTL[command] if f"    {option}" not in done.stdout]
