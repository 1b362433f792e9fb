"""A few Kubernetes objects behind HTTP: as much of an API server as backends need to mark and look at a cluster."""

from __future__ import annotations

import json
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

Key = tuple[str, str, str]
"""Resource, namespace, name."""


class ApiStub:
    """Objects by key; runs in a thread until `close`."""

    def __init__(self) -> None:
        self.objects: dict[Key, dict[str, Any]] = {}
        self.logs: dict[str, str] = {}
        self.answers: dict[str, tuple[int, dict[str, Any]]] = {}
        """Path -> what is answered instead."""
        self.unknown: set[str] = {"queues"}
        """Resources whose kind the server does not know."""
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def _answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else {}
                code, answer = stub.handle(self.command, urlsplit(self.path).path, body)
                data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PATCH = do_POST = do_DELETE = _answer

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.new_cluster()

    def new_cluster(self) -> None:
        """A cluster as kind has just made it."""
        self.objects.clear()
        self.put("namespaces", "", "kube-system")
        self.put("nodes", "", "kai-hami-test-control-plane", status=ready())

    def put(self, resource: str, namespace: str, name: str, **body: Any) -> dict[str, Any]:
        meta = {"name": name, "uid": str(uuid.uuid4())} | ({"namespace": namespace} if namespace else {})
        obj = {"metadata": meta | body.pop("metadata", {}), **body}
        self.objects[resource, namespace, name] = obj
        return obj

    def names(self, resource: str) -> list[str]:
        return sorted(key[2] for key in self.objects if key[0] == resource)

    def handle(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path in self.answers:
            return self.answers[path]
        if path == "/version":
            return 200, {"gitVersion": "v1.34.0"}
        if path == "/apis":
            return 200, {"groups": []}
        if path == "/api/v1":
            resources = [{"name": "pods", "kind": "Pod"}, {"name": "configmaps", "kind": "ConfigMap"}]
            return 200, {"resources": [{**kind, "namespaced": True, "verbs": ["get", "list"]} for kind in resources]}
        parts = path.strip("/").split("/")
        parts = parts[2:] if parts[0] == "api" else parts[3:]
        namespace = ""
        if parts[0] == "namespaces" and len(parts) > 2:
            namespace, parts = parts[1], parts[2:]
        resource, name = parts[0], parts[1] if len(parts) > 1 else ""
        if resource in self.unknown:
            return 404, status(404, "NotFound", "the server could not find the requested resource")
        if parts[2:] == ["log"]:
            return (200, self.logs[name]) if name in self.logs else (400, status(400, "BadRequest", "waiting to start"))
        if method == "POST":
            meta = body.pop("metadata")
            if (resource, namespace, meta["name"]) in self.objects:
                return 409, status(409, "AlreadyExists", f'{resource} "{meta["name"]}" already exists')
            return 201, self.put(resource, namespace, meta["name"], **body, metadata=meta)
        if not name:
            items = [o for (r, n, _), o in self.objects.items() if r == resource and (not namespace or n == namespace)]
            return 200, {"items": items, "metadata": {"resourceVersion": "1"}}
        found = self.objects.get((resource, namespace, name))
        if method == "PATCH" and (found is None or "kind" in body):
            meta = body.pop("metadata")
            return 200, self.put(resource, namespace, name, **body, metadata=meta)
        if found is None:
            return 404, status(404, "NotFound", f'{resource} "{name}" not found')
        if method == "PATCH":
            merge(found, body)
        if method == "DELETE":
            del self.objects[resource, namespace, name]
        return 200, found

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def ready(word: str = "True") -> dict[str, Any]:
    return {"conditions": [{"type": "Ready", "status": word}]}


def status(code: int, reason: str, message: str) -> dict[str, Any]:
    return {"kind": "Status", "code": code, "reason": reason, "message": message, "status": "Failure"}


def merge(target: dict[str, Any], change: dict[str, Any]) -> None:
    for key, value in change.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict) and isinstance(target.get(key), dict):
            merge(target[key], value)
        else:
            target[key] = value
