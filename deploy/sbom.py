# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Writes a CycloneDX 1.5 bill of materials of the image to standard output.

Runs in the image with the image's Python; lists its packages and those of the distribution.
"""

from collections.abc import Iterator
from importlib.metadata import distributions
import json
import subprocess
import sys
from urllib.parse import quote

_FORMAT = "${db:Status-Abbrev}\t${Package}\t${Version}\t${Architecture}\n"


def _debian() -> Iterator[dict[str, str]]:
    listed = subprocess.run(
        ["/usr/bin/dpkg-query", "--show", f"--showformat={_FORMAT}"],
        check=True,
        capture_output=True,
        text=True,
    )
    for line in listed.stdout.splitlines():
        status, name, version, architecture = line.split("\t")
        if status.strip() == "ii":
            purl = f"pkg:deb/debian/{name}@{quote(version)}?arch={architecture}"
            yield {"type": "library", "name": name, "version": version, "purl": purl}


def _python() -> Iterator[dict[str, str]]:
    for found in distributions():
        name = found.metadata["Name"].lower().replace("_", "-")
        purl = f"pkg:pypi/{name}@{quote(found.version)}"
        yield {"type": "library", "name": name, "version": found.version, "purl": purl}


def main() -> None:
    """Print the bill of materials; the output is reproducible."""
    components = sorted([*_debian(), *_python()], key=lambda each: each["purl"])
    for each in components:
        each["bom-ref"] = each["purl"]
    bill = {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": "sweetpoint"}},
        "components": components,
    }
    json.dump(bill, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
