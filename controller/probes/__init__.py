# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Measurement: BPF, perf, PSI, cgroup files, services' own figures.

Probes read; they never write a knob.
"""
