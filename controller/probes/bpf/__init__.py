# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Loading BPF programs: BTF offsets, the loader child, libbpf, typed programs."""
