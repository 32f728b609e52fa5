# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``python3 -m controller.doctor``: the report without an installation of sweetpoint."""

import sys

from controller.doctor import main

sys.exit(main(as_json="--json" in sys.argv[1:]))
