"""Stands in for docker, kind, helm and git on the PATH: logs each call, replays recorded words, keeps a simple state.

The folder in TOOL_STATE holds ``calls.jsonl`` (what was called), ``rules.json`` (recorded answers, tried first, each
for its `times`) and ``state.json`` (clusters, images, releases) which gives the answers of a machine where all is well.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

UNLISTED = ("values", "history", "description")
IMPORTED = "docker.io/library/import-2026-11-30@sha256:cfa73354dbf8c986087f31fb6a45e1dcade9e59b0bc63ab5aaf644fac8ace8ab"
"""What a node names an image by, besides its tag, that kind loaded into it."""
LOGGED = ("HELM_REGISTRY_CONFIG", "DOCKER_CONFIG", "HELM_NAMESPACE", "HELM_CACHE_HOME", "GIT_TERMINAL_PROMPT")


class Answer(Exception):
    """What the tool prints, and its exit code."""

    def __init__(self, out: str = "", err: str = "", code: int = 0) -> None:
        self.out, self.err, self.code = out, err, code


def option(arguments: list[str], name: str, default: str = "") -> str:
    return arguments[arguments.index(name) + 1] if name in arguments else default


def now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")


def listed(rows: list[dict[str, Any]], arguments: list[str]) -> list[dict[str, Any]]:
    """The rows that `helm list` prints: of a namespace or all, by name, and no more than it is asked for."""
    found = sorted(rows, key=lambda row: str(row["name"]))
    if "-A" not in arguments:
        found = [row for row in found if row["namespace"] == option(arguments, "-n", "default")]
    found = [row for row in found if re.search(option(arguments, "--filter"), str(row["name"]))]
    return found[: int(option(arguments, "--max", "256"))]


def values(arguments: list[str]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, text in itertools.pairwise(arguments):
        if name in ("--set", "--set-string", "--set-json"):
            key, _, value = text.partition("=")
            *folders, last = key.split(".")
            at = tree
            for folder in folders:
                at = at.setdefault(folder, {})
            at[last] = value if name == "--set-string" else json.loads(value)
    return tree


def archived(file: Path) -> dict[str, str]:
    """The images of an archive by name: of one that docker saved, or of this module's own kind."""
    import tarfile

    if not tarfile.is_tarfile(file):
        return dict(json.loads(file.read_text()))
    with tarfile.open(file) as tar:
        content = tar.extractfile("manifest.json")
        assert content is not None
        rows = json.load(content)
    return {tag: f"sha256:{row['Config'].rpartition('/')[2]}" for row in rows for tag in row["RepoTags"]}


class Tools:
    """All tools of one machine, whose state is a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def answer(self, tool: str, arguments: list[str], env: Mapping[str, str | None], stdin: str = "") -> Answer:
        """Log a call and answer it."""
        self.stdin = stdin
        call = {"tool": tool, "arguments": arguments, "env": {key: env.get(key) for key in LOGGED}}
        with open(self.folder / "calls.jsonl", "a") as log:
            log.write(json.dumps(call) + "\n")
        try:
            self.by_rule(tool, arguments)
            {"kind": self.kind, "docker": self.docker, "helm": self.helm, "git": self.git}[tool](arguments)
        except Answer as answer:
            return answer
        return Answer()

    @contextlib.contextmanager
    def state(self) -> Iterator[dict[str, Any]]:
        file = self.folder / "state.json"
        with open(self.folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            data = json.loads(file.read_text()) if file.exists() else {}
            for key in ("clusters", "images", "labels", "releases", "used"):
                data.setdefault(key, {})
            try:
                yield data
            finally:  # an answer leaves from inside
                whole = self.folder / f"state.{os.getpid()}"
                whole.write_text(json.dumps(data))
                os.replace(whole, file)  # a killed stub leaves no half of it

    def half_done(self, status: str, arguments: list[str]) -> None:
        """Leave a release behind as a helm does that is killed in the middle of its work."""
        name, namespace = arguments[2], option(arguments, "--namespace", "default")
        row = {"name": name, "namespace": namespace, "revision": "1", "status": status, "chart": "cut-off-0.0.0"}
        with self.state() as data:
            data["releases"][f"{namespace}/{name}"] = row

    def built(self, tag: str, number: int) -> str:
        """The id of an image that is built now."""
        return f"sha256:{number:064x}"

    def by_rule(self, tool: str, arguments: list[str]) -> None:
        """Answer as the first rule says that matches and is not used up."""
        line = " ".join([tool, *arguments])
        file = self.folder / "rules.json"
        rules = json.loads(file.read_text()) if file.exists() else []
        for number, rule in enumerate(rules):
            if not re.search(rule["match"], line):
                continue
            with self.state() as data:
                used = data["used"].get(str(number), 0)
                if used >= rule.get("times", 10**6):
                    continue
                data["used"][str(number)] = used + 1
                for key in rule.get("makes_cluster", ()):
                    data["clusters"][key] = now()
                for key, row in rule.get("makes_release", {}).items():
                    data["releases"][key] = row
            if "kills" in rule:
                os.kill(rule["kills"], signal.SIGKILL)
            if "half_done" in rule:
                self.half_done(rule["half_done"], arguments)
            if "alive" in rule:
                alive = os.open(rule["alive"], os.O_WRONLY)
                os.fork()
                os.write(alive, b"up\n")
                while True:
                    signal.pause()
            if rule.get("passes"):
                return
            raise Answer(rule.get("out", ""), rule.get("err", ""), rule.get("rc", 0))

    def write_kubeconfig(self, file: str, context: str) -> None:
        """A kubeconfig for the cluster behind the stubs, under the name that kind would give it."""
        real = self.folder / "kubeconfig"
        if real.exists():
            text = real.read_text()
            Path(file).write_text(text.replace((self.folder / "context").read_text(), context))
            return
        url = (self.folder / "server").read_text()
        content = {
            "clusters": [{"name": context, "cluster": {"server": url}}],
            "users": [{"name": context, "user": {"token": "not-a-secret"}}],
            "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
            "current-context": context,
        }
        Path(file).write_text(json.dumps(content))

    def kind(self, arguments: list[str]) -> None:
        name = option(arguments, "--name", "kind")
        with self.state() as data:
            clusters = data["clusters"]
            match arguments[:2]:
                case ["version", *_]:
                    raise Answer("kind v0.33.0 go1.26.8 linux/amd64\n")
                case ["get", "clusters"]:
                    raise Answer(
                        "".join(f"{cluster}\n" for cluster in clusters), "" if clusters else "No kind clusters found.\n"
                    )
                case ["get", "nodes"]:
                    raise Answer(f"{name}-control-plane\n" if name in clusters else "")
                case ["create", "cluster"]:
                    if name in clusters:
                        exist = f'node(s) already exist for a cluster with the name "{name}"'
                        raise Answer("", f"ERROR: failed to create cluster: {exist}\n", 1)
                    clusters[name] = now()
                    self.write_kubeconfig(option(arguments, "--kubeconfig"), f"kind-{name}")
                case ["delete", "cluster"]:
                    clusters.pop(name, None)
                    data["images"].pop(f"{name}-control-plane", None)
                    raise Answer("", f'Deleting cluster "{name}" ...\n')
                case ["export", "kubeconfig"]:
                    self.write_kubeconfig(option(arguments, "--kubeconfig"), f"kind-{name}")
                case ["export", "logs"]:
                    (Path(arguments[2]) / "kubelet.log").write_text("kubelet\n")
                case ["load", "docker-image"]:
                    local = data["images"].get("local", {})
                    if arguments[2] not in local:
                        raise Answer("", f'ERROR: image: "{arguments[2]}" not present locally\n', 1)
                    data["images"].setdefault(f"{name}-control-plane", {})[arguments[2]] = local[arguments[2]]
                case ["load", "image-archive"]:
                    content = archived(Path(arguments[2]))
                    data["images"].setdefault(f"{name}-control-plane", {}).update(content)

    def docker(self, arguments: list[str]) -> None:
        with self.state() as data:
            local = data["images"].setdefault("local", {})
            match arguments:
                case ["info", *_]:
                    facts = {
                        "ID": data.get("daemon", "OLDU:CUP2"),
                        "ServerVersion": "20.10.24",
                        "CgroupVersion": "2",
                        "MemTotal": 8 << 30,
                        "DockerRootDir": "/",
                    }
                    raise Answer(json.dumps(facts | {"SecurityOptions": ["name=seccomp,profile=default"]}) + "\n")
                case ["image", "inspect", "--format", template, image]:
                    if image not in local:
                        raise Answer("[]\n", f"Error: No such image: {image}\n", 1)
                    raise Answer(
                        f"{local[image]}\n" if "Id" in template else json.dumps(data["labels"].get(image)) + "\n"
                    )
                case ["build", *_]:
                    if not Path(option(arguments, "--file")).is_file():
                        raise Answer(
                            "", "unable to prepare context: unable to evaluate symlinks in Dockerfile path: lstat\n", 1
                        )
                    tag = option(arguments, "--tag")
                    local[tag] = self.built(tag, len(data["used"]))
                    key, _, value = option(arguments, "--label").partition("=")
                    data["labels"][tag] = {key: value}
                case ["save", *_]:
                    images = {name: local[name] for name in arguments[3:]}
                    Path(option(arguments, "--output")).write_text(json.dumps(images))
                case ["exec", node, "crictl", "pull", image]:
                    data["images"].setdefault(node, {})[image] = f"pulled:{image}"
                case ["exec", node, "crictl", *_]:
                    rows = [
                        {"id": i, "repoTags": [f"docker.io/library/{n}"], "repoDigests": [IMPORTED]}
                        if not i.startswith("pulled:")
                        else {"id": i, "repoTags": [n], "repoDigests": [f"{n.rpartition(':')[0]}@sha256:0"]}
                        for n, i in data["images"].get(node, {}).items()
                    ]
                    raise Answer(json.dumps({"images": rows}))
                case ["exec", "-i", _, "cp", "/dev/stdin", path]:
                    with open(self.folder / "written.jsonl", "a") as out:
                        out.write(json.dumps({"path": path, "text": self.stdin}) + "\n")
                case ["inspect", "--format", template, container]:
                    cluster = container.removesuffix("-control-plane")
                    if cluster not in data["clusters"]:
                        raise Answer("\n", f"Error: No such object: {container}\n", 1)
                    if "Id" in template:  # one per container, and a node made anew is another container
                        raise Answer(hashlib.sha256(f"{container}{data['clusters'][cluster]}".encode()).hexdigest())
                    stopped = cluster in data.get("stopped", [])
                    raise Answer(data["clusters"][cluster] if "Created" in template else str(not stopped).lower())
                case ["start", container]:
                    data["stopped"] = [
                        c for c in data.get("stopped", []) if c != container.removesuffix("-control-plane")
                    ]
                case ["network", *_]:
                    raise Answer('[{"Subnet":"fc00:f853::/64"},{"Subnet":"172.18.0.0/16","Gateway":"172.18.0.1"}]\n')

    def helm(self, arguments: list[str]) -> None:
        namespace = option(arguments, "--namespace") or option(arguments, "-n", "default")
        with self.state() as data:
            releases = data["releases"]
            match arguments:
                case ["version", *_]:
                    raise Answer('version.BuildInfo{Version:"v3.22.0", GitCommit:"", GoVersion:"go1.26.8"}\n')
                case ["list", *_]:
                    rows = [{k: v for k, v in row.items() if k not in UNLISTED} for row in releases.values()]
                    raise Answer(json.dumps(listed(rows, arguments)))
                case ["history", name, *_]:
                    row = releases.get(f"{namespace}/{name}")
                    if row is None:
                        raise Answer("", "Error: release: not found\n", 1)
                    newest = {"revision": 1, "status": row["status"], "description": row.get("description", "")}
                    raise Answer(json.dumps(row.get("history") or [newest]))
                case ["get", "values", name, *_]:
                    raise Answer(json.dumps(releases[f"{namespace}/{name}"].get("values")))
                case ["upgrade", "--install", name, chart, *_]:
                    row = releases.get(f"{namespace}/{name}", {"revision": "0"})
                    version = option(arguments, "--version", "0.0.0")
                    releases[f"{namespace}/{name}"] = {
                        "name": name,
                        "namespace": namespace,
                        "revision": str(int(row["revision"]) + 1),
                        "status": "deployed",
                        "chart": f"{chart.rsplit('/', 1)[-1]}-{version}",
                        "values": values(arguments),
                        "description": option(arguments, "--description", "Upgrade complete"),
                    }
                    raise Answer("STATUS: deployed\n", "Pulled: x\nDigest: sha256:abc\n")
                case ["uninstall", name, *_]:
                    if releases.pop(f"{namespace}/{name}", None) is None:
                        raise Answer("", f"Error: uninstall: Release not loaded: {name}: release: not found\n", 1)
                    raise Answer(f'release "{name}" uninstalled\n')
                case ["rollback", name, *_]:
                    releases[f"{namespace}/{name}"]["status"] = "deployed"

    def git(self, arguments: list[str]) -> None:
        """Branches of any source are in the state, by name; what is not there is a tag."""
        with self.state() as data:
            branches = data.get("branches", {})
        match arguments:
            case ["clone", *_, "--branch", ref, "--", source, target]:
                folder = Path(target)
                (folder / ".git").mkdir(parents=True)
                (folder / "deployments" / "nvml-mock").mkdir(parents=True)
                (folder / "deployments" / "nvml-mock" / "Dockerfile").write_text("FROM scratch\n")
                commit = branches.get(ref) or hashlib.sha1(f"{source}@{ref}".encode()).hexdigest()
                (folder / ".git" / "commit").write_text(commit)
                if ref in branches:
                    (folder / ".git" / "HEAD").write_text(f"refs/heads/{ref}\n")
            case ["-C", folder, "rev-parse", "HEAD"]:
                raise Answer((Path(folder) / ".git" / "commit").read_text() + "\n")
            case ["-C", folder, "symbolic-ref", "--quiet", "HEAD"]:
                head = Path(folder) / ".git" / "HEAD"
                raise Answer(head.read_text()) if head.exists() else Answer(code=1)
            case ["ls-remote", "--", _, ref]:
                commit = branches.get(ref.removeprefix("refs/heads/"))
                raise Answer(f"{commit}\t{ref}\n" if commit else "")


def main(tools: type[Tools] = Tools) -> None:
    """Answer the call in this process's arguments: the tool's name, then its own arguments."""
    stdin = sys.stdin.read() if "/dev/stdin" in sys.argv else ""
    answer = tools(Path(os.environ["TOOL_STATE"])).answer(sys.argv[1], sys.argv[2:], os.environ, stdin)
    sys.stdout.write(answer.out)
    sys.stderr.write(answer.err)
    sys.exit(answer.code)


if __name__ == "__main__":
    main()
