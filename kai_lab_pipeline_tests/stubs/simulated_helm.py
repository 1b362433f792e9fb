"""A helm on the PATH that installs the charts of the rehearsal, through the command line that the lab gives to helm.

What takes long to import is imported where it is needed: this is a new process for each call.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

from kai_lab_pipeline_tests.stubs.tool import Answer, Tools, listed, main, option

SERVER = "rehearsal.json"
"""File beside the stubs' state with url, token and time scale of the rehearsal's server."""
WAIT_S = 120.0


def dotted_values(arguments: list[str]) -> dict[str, Any]:
    """The values as they were given, key by key."""
    found: dict[str, Any] = {}
    for name, text in itertools.pairwise(arguments):
        if name in ("--set", "--set-string", "--set-json"):
            key, _, value = text.partition("=")
            found[key] = value if name == "--set-string" else json.loads(value)
    return found


class SimulatedTools(Tools):
    """The stub tools, with a helm that works on the rehearsal's server."""

    def half_done(self, status: str, arguments: list[str]) -> None:
        """Leave the release as a helm does that is killed in the middle of its work."""
        from kai_lab_pipeline.rehearsal import releases
        from kai_lab_pipeline.rehearsal.client import SyncApi

        url, token, _ = self._server()
        namespace = option(arguments, "--namespace", "default")
        with SyncApi(url, token) as api:
            record = {
                "name": arguments[2],
                "namespace": namespace,
                "revision": 1,
                "status": status,
                "updated": "2026-11-30 00:00:00 +0000 UTC",
                "chart": arguments[3].rsplit("/", 1)[-1],
                "chart_version": option(arguments, "--version"),
                "app_version": option(arguments, "--version"),
                "config": {},
                "objects": [],
                "description": "Initial install underway",
            }
            releases.store(api, record)

    def built(self, tag: str, number: int) -> str:
        """As the simulated kubelet names it in a pod's status."""
        from kai_lab_pipeline.rehearsal.profiles import image_id

        return image_id(tag)

    def helm(self, arguments: list[str]) -> None:
        if arguments[0] == "version":
            super().helm(arguments)
        url, token, scale = self._server()
        namespace = option(arguments, "--namespace") or option(arguments, "-n", "default")
        match arguments:
            case ["list", *_]:
                raise Answer(json.dumps(listed(self._rows(url, token), arguments)))
            case ["history", name, *_]:
                raise Answer(json.dumps(self._rows(url, token, namespace, name)))
            case ["get", "values", name, *_]:
                raise Answer(json.dumps(self._values(url, token, namespace, name)))
            case ["get", "manifest", name, *_]:
                from kai_lab_pipeline.rehearsal.helm import manifest

                objects = manifest(url, token, release=name, namespace=namespace)
                raise Answer("".join(f"---\n{json.dumps(obj)}\n" for obj in objects))
            case ["uninstall" | "upgrade", *_]:
                self._change(url, token, scale, namespace, arguments)
            case _:
                super().helm(arguments)

    def _rows(self, url: str, token: str, namespace: str = "", name: str = "") -> list[dict[str, str]]:
        """The newest revision of every release, or all of one."""
        from kai_lab_pipeline.rehearsal import releases
        from kai_lab_pipeline.rehearsal.client import SyncApi

        with SyncApi(url, token) as api:
            found = releases.revisions(api, namespace, name) if name else releases.all_newest(api)
            return [releases.row(record) for record in found]

    def _values(self, url: str, token: str, namespace: str, name: str) -> dict[str, Any] | None:
        from kai_lab_pipeline.clients.helm import nested
        from kai_lab_pipeline.rehearsal import releases
        from kai_lab_pipeline.rehearsal.client import SyncApi

        with SyncApi(url, token) as api:
            newest = releases.newest(api, namespace, name)
        return nested(newest["config"]) if newest else None

    def _change(self, url: str, token: str, scale: float, namespace: str, arguments: list[str]) -> None:
        from kai_lab_pipeline.rehearsal import helm, profiles

        try:
            if arguments[0] == "uninstall":
                helm.uninstall(url, token, release=arguments[1], namespace=namespace, time_scale=scale)
                return
            _, _, name, chart = arguments[:4]
            row = helm.install_or_upgrade(
                url,
                token,
                release=name,
                namespace=namespace,
                chart=chart,
                version=option(arguments, "--version"),
                values=dotted_values(arguments),
                time_scale=scale,
                wait_s=WAIT_S,
            )
        except (helm.HelmError, profiles.UnknownVersion) as error:
            raise Answer("", f"{error}\n", 1) from None
        raise Answer(f"STATUS: {row['status']}\n")

    def _server(self) -> tuple[str, str, float]:
        server = json.loads((self.folder / SERVER).read_text())
        return server["url"], server["token"], server["time_scale"]


if __name__ == "__main__":
    main(SimulatedTools)
