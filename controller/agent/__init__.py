# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The running process: guardian, control loop, reload, sampler, recording and self-budget."""
