# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
#
# Every target first installs its missing requirements and prints them; see tools/bootstrap.

MAKEFLAGS += --no-print-directory

# Kept for the next tree: without it the types of all files take a minute.
MYPY_CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/sweetpoint/mypy

# Each agent of a test starts faster with the bytecode of its modules, also where it is not wanted.
export PYTHONDONTWRITEBYTECODE :=

# One more than CPUs, because some tests wait.
PROCESSES = $(shell expr $$(nproc) + 1)

# The stages, by the markers that pyproject.toml explains. No verdict of the first three depends on
# the speed of the machine.
UNTIMED := not bench and not soak and not timed
PURE := not kernel and not kube and not vm and not thorough and $(UNTIMED)
KERNEL := kernel and not kube and not vm and not thorough and $(UNTIMED)
PURE_IN := tests/unit tests/property tests/replay tests/sim tests/deploy
KERNEL_IN := tests/kernel tests/deploy tests/unit/doctor
ALL_PURE := not kernel and not kube and not vm and $(UNTIMED)
ALL_KERNEL := (kernel or kube or vm) and $(UNTIMED)

.PHONY: help reference demo test test-all vm-test kube-test bench compare soak lint clean bootstrap test-tools test-kernel real-node

help:
	@echo "make demo       demonstration with real programs, about four minutes"
	@echo "make test       lint, and the tests that need nothing built: minutes"
	@echo "make test-all   these, the other kernel tests, the test kernel and a real node"
	@echo "make vm-test    only tests in the test kernel (resctrl, core scheduling, cgroup v2)"
	@echo "make kube-test  only tests with a real Kubernetes API server and node"
	@echo "make lint       format, lint, types, import contracts"
	@echo "make bench      benchmarks of cost and control quality"
	@echo "make reference  docs/REFERENCE.md from the code"
	@echo "make compare    real services beside real jobs, under other rules too (an hour)"
	@echo "make soak       tests that take long, and tests that judge by time"
	@echo "make clean      remove generated files; test kernel and Kubernetes stay in ~/.cache/sweetpoint"

bootstrap:
	@tools/bootstrap

test-tools:
	@tools/bootstrap test

demo: bootstrap
	@.venv/bin/sweetpoint demo

# What needs nothing runs on all CPUs, what needs the running kernel alone.
test: test-tools lint
	@.venv/bin/pytest -n $(PROCESSES) --dist worksteal -m "$(PURE)" $(PURE_IN)
	@.venv/bin/pytest -m "$(KERNEL)" $(KERNEL_IN)
	@echo "left out: the other kernel tests, the test kernel, the real node (make test-all)"
	@echo "left out: what judges by time (make soak, make bench)"

# The same and all others. Of those that need the running kernel, the ones of `make test` come first.
# The test kernel and the real node run beside them, and are reported last.
test-all: test-tools lint test-kernel real-node
	@.venv/bin/pytest -n $(PROCESSES) --dist worksteal -m "$(ALL_PURE)" $(PURE_IN)
	@.venv/bin/pytest -m "$(ALL_KERNEL)" $(KERNEL_IN) tests/kube tests/vm

vm-test: test-tools test-kernel real-node
	@.venv/bin/pytest tests/vm

kube-test: test-tools real-node
	@.venv/bin/pytest tests/kube

# Takes ten minutes at the first run.
test-kernel: test-tools
	@[ "$$SWEETPOINT_VM_TESTS" = 0 ] || tools/test-kernel build

# Takes ten minutes at the first run.
real-node: test-tools
	@[ "$$SWEETPOINT_KUBE_TESTS" = 0 ] || tools/real-node build

lint: test-tools
	@.venv/bin/ruff check --quiet
	@.venv/bin/ruff format --check --quiet
	@.venv/bin/mypy --no-error-summary --cache-dir="$(MYPY_CACHE)"
	@found=$$(.venv/bin/lint-imports --no-logo) || { echo "$$found"; exit 1; }

bench:
	@tools/bootstrap bench
	@.venv/bin/pytest -s -m bench

reference: test-tools
	@.venv/bin/python -m tools.reference

compare:
	@tools/bootstrap bench
	@.venv/bin/python -m tests.compare $(ARGS)

# Builds what is missing, because long tests of the guest and of the node are among them.
soak: test-tools test-kernel real-node
	@.venv/bin/pytest -m "soak or timed"
	@.venv/bin/pytest --hypothesis-profile=explore tests/property

clean:
	rm -rf .venv build dist reports *.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
