"""A helm on the PATH that installs the charts of the rehearsal, through the command line that the lab gives to helm."""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

from kai_lab_pipeline.rehearsal import helm
from kai_lab_pipeline_tests.stubs.tool import LOGGED, option


def dotted_values(arguments: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, text in itertools.pairwise(arguments):
        if name in ("--set", "--set-string", "--set-json"):
            key, _, value = text.partition("=")
            found[key] = value if name == "--set-string" else json.loads(value)
    return found


def main() -> None:
    folder, arguments = Path(os.environ["TOOL_STATE"]), sys.argv[1:]
    server = json.loads((folder / "rehearsal.json").read_text())
    call = {"tool": "helm", "arguments": arguments, "env": {key: os.environ.get(key) for key in LOGGED}}
    with open(folder / "calls.jsonl", "a") as log:
        log.write(json.dumps(call) + "\n")
    url, token, scale = server["url"], server["token"], server["time_scale"]
    namespace = option(arguments, "--namespace") or option(arguments, "-n", "default")
    match arguments:
        case ["version", *_]:
            print('version.BuildInfo{Version:"v3.22.0", GitCommit:"", GoVersion:"go1.26.8"}')
        case ["list", *_]:
            print(json.dumps(helm.list_releases(url, token)))
        case ["history", *_]:
            print("[]")
        case ["get", "values", *_]:
            print("null")
        case ["uninstall", name, *_]:
            helm.uninstall(url, token, release=name, namespace=namespace, time_scale=scale)
        case ["upgrade", "--install", name, chart, *_]:
            try:
                row = helm.install_or_upgrade(
                    url,
                    token,
                    release=name,
                    namespace=namespace,
                    chart=chart,
                    version=option(arguments, "--version"),
                    values=dotted_values(arguments),
                    time_scale=scale,
                    wait_s=60.0,
                )
            except helm.HelmError as error:
                sys.exit(str(error))
            print(f"STATUS: {row['status']}")


if __name__ == "__main__":
    main()
