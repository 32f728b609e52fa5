# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``python3 -m controller.doctor`` in the source tree: the report without an installation."""

import sys

from controller.doctor import main

sys.exit(main(as_json="--json" in sys.argv[1:]))
