# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
#
# Every target first installs its missing requirements and prints them; see tools/bootstrap.

MAKEFLAGS += --no-print-directory

.PHONY: help reference demo test vm-test kube-test bench compare soak lint clean bootstrap test-tools test-kernel real-node

help:
	@echo "make demo       demonstration with real programs, about two minutes"
	@echo "make test       lint and all tests"
	@echo "make vm-test    only tests in the test kernel (resctrl, core scheduling, cgroup v2)"
	@echo "make kube-test  only tests with a real Kubernetes API server and node"
	@echo "make lint       format, lint, types, import contracts"
	@echo "make bench      benchmarks of cost and control quality"
	@echo "make reference  docs/REFERENCE.md from the code"
	@echo "make compare    real services beside real jobs, under other rules too (an hour)"
	@echo "make soak       tests that take longer than a few minutes"
	@echo "make clean      remove generated files; test kernel and Kubernetes stay in ~/.cache/sweetpoint"

bootstrap:
	@tools/bootstrap

test-tools:
	@tools/bootstrap test

demo: bootstrap
	@.venv/bin/sweetpoint demo

test: test-tools lint test-kernel real-node
	@.venv/bin/pytest

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
	@.venv/bin/mypy --no-error-summary
	@found=$$(.venv/bin/lint-imports --no-logo) || { echo "$$found"; exit 1; }

bench:
	@tools/bootstrap bench
	@.venv/bin/pytest -s -m bench

reference: test-tools
	@.venv/bin/python -m tools.reference

compare:
	@tools/bootstrap bench
	@.venv/bin/python -m tests.compare $(ARGS)

soak: test-tools
	@.venv/bin/pytest -m soak
	@.venv/bin/pytest --hypothesis-profile=explore tests/property

clean:
	rm -rf .venv build dist reports *.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
