"""The admission webhooks of KAI and the isolator, and the services that lead to them."""

from __future__ import annotations

import base64
import json
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import jsonpatch

from kai_lab_pipeline.rehearsal.client import JSON_PATCH, Object
from kai_lab_pipeline.rehearsal.components import isolator, programs
from kai_lab_pipeline.rehearsal.components.informers import Key, key_of
from kai_lab_pipeline.rehearsal.components.kai_admission import AdmissionSettings, denial, mutated
from kai_lab_pipeline.rehearsal.components.podlogs import ContainerLog
from kai_lab_pipeline.rehearsal.components.runtime import Controller, Sim
from kai_lab_pipeline.rehearsal.components.serving import LocalServer
from kai_lab_pipeline.rehearsal.components.workloads import pod_ready

log = logging.getLogger(__name__)

FORWARD_TO = "rehearsal.kai-lab/forward-to"
REFUSED = "refused"

Review = tuple[bool, str, list[Object]]
"""Allowed or not, the message of a denial, and a JSON patch."""


def container_log(sim: Sim, pod: Object, container: str) -> ContainerLog:
    """The log of the newest attempt of a pod's container."""
    namespace, name = key_of(pod)
    attempt = 0
    for status in (pod.get("status") or {}).get("containerStatuses") or []:
        if status["name"] == container:
            attempt = int(status.get("restartCount") or 0)
    return sim.logs.of(namespace, name, pod["metadata"]["uid"], container, attempt)


class WebhookApp:
    """ASGI application: ``/<service namespace>/<service name>/<webhook path>``."""

    def __init__(self, sim: Sim) -> None:
        self._sim = sim
        self._rng = random.Random()

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        try:
            code, answer = self._answer(scope["path"], json.loads(body))
        except (ValueError, KeyError) as error:
            log.warning("webhook %s: %r", scope["path"], error)
            code, answer = 400, {"error": str(error)}
        payload = json.dumps(answer).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(payload)).encode())]
        await send({"type": "http.response.start", "status": code, "headers": headers})
        await send({"type": "http.response.body", "body": payload})

    def _answer(self, path: str, review: Object) -> tuple[int, Object]:
        _, namespace, service, hook = path.split("/", 3)
        request = review["request"]
        pod = self._serving_pod(namespace, service)
        if pod is None:
            return 503, {"error": f"nothing serves {namespace}/{service}"}
        allowed, message, patch = self._review(f"/{hook}", request, pod)
        response: Object = {"uid": request["uid"], "allowed": allowed}
        if not allowed:
            response["status"] = {"code": 403, "message": message, "reason": "Forbidden"}
        if patch:
            response["patchType"] = "JSONPatch"
            response["patch"] = base64.b64encode(json.dumps(patch).encode()).decode()
        return 200, {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}

    def _serving_pod(self, namespace: str, service: str) -> Object | None:
        found = self._sim.of("services").get(namespace, service)
        selector = (found or {}).get("spec", {}).get("selector") or {}
        return self._sim.running_pod(namespace, selector) if selector else None

    def _review(self, hook: str, request: Object, pod: Object) -> Review:
        if hook == "/mutate":
            return self._isolate(request, pod)
        if hook.endswith("-v1-pod"):
            return self._admit_pod(hook, request, pod)
        if hook == "/validate-scheduling-run-ai-v2-queue":
            return self._validate_queue(request)
        return True, "", []

    def _admit_pod(self, hook: str, request: Object, pod: Object) -> Review:
        spec = pod["spec"]["containers"][0]
        settings = AdmissionSettings.of_args([str(arg) for arg in spec.get("args") or []])
        logger, text = (
            ("pod-mutator", "customDefaulter") if hook == "/mutate--v1-pod" else ("pod-validator", "pod validator")
        )
        line = programs.zap("INFO", text, logger, {"kind": "Pod"})
        container_log(self._sim, pod, spec["name"]).write(line)
        wanted = request["object"]
        namespace = request.get("namespace") or wanted["metadata"].get("namespace", "default")
        refused = denial(wanted, namespace, settings)
        if refused is not None:
            return False, refused, []
        if hook != "/mutate--v1-pod":
            return True, "", []
        return True, "", jsonpatch.make_patch(wanted, mutated(wanted, settings, self._rng)).patch

    def _validate_queue(self, request: Object) -> Review:
        faults = self._sim.faults
        if faults.on("queue_webhook_denies"):
            return False, faults.text("queue_webhook_denies", "the rehearsal was told to deny every queue"), []
        if not (request["object"].get("spec") or {}).get("resources"):
            return False, "resources must be specified", []
        return True, "", []

    def _isolate(self, request: Object, pod: Object) -> Review:
        spec = pod["spec"]["containers"][0]
        wanted = request["object"]
        name = wanted["metadata"].get("name") or wanted["metadata"].get("generateName", "")
        namespace = request.get("namespace") or wanted["metadata"].get("namespace", "default")
        lead = f"mutate uid={request['uid']} ns={namespace} pod={name} "
        output = container_log(self._sim, pod, spec["name"])
        skipped = isolator.skip_reason(wanted, programs.isolator_keys(self._sim))
        if skipped is not None:
            output.write(programs.golog(f"{lead}skipped: {skipped}"))
            return True, "", []
        old = self._sim.faults.on("isolator_fewer_mounts") or ":v1.0." in str(spec["image"])
        try:
            patch = isolator.injection(wanted, full=not old)
        except isolator.UnknownContainer as error:
            output.write(programs.golog(f"{lead}error: {error}"))
            return False, str(error), []
        size = len(json.dumps(patch, separators=(",", ":")))
        output.write(programs.golog(f"{lead}injected: patchBytes={size}"))
        return True, "", patch


class Endpoints(Controller):
    """Leads each service of a webhook to this process while a pod behind it is ready, and nowhere otherwise."""

    name = "endpoint-controller"

    def __init__(self, sim: Sim, server: LocalServer) -> None:
        super().__init__(sim)
        self._server = server
        self.services = self.watch("services")
        self.watch("pods", self._services_of)
        if sim.options.webhook_url_mode:
            for plural in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
                self.watch(plural, lambda obj: [key_of(service) for service in self.services.all()])

    def _services_of(self, pod: Object) -> list[Key]:
        labels: Mapping[str, str] = pod["metadata"].get("labels") or {}
        keys: list[Key] = []
        for service in self.services.all(pod["metadata"].get("namespace")):
            selector = service["spec"].get("selector") or {}
            if selector and all(labels.get(name) == value for name, value in selector.items()):
                keys.append(key_of(service))
        return keys

    async def reconcile(self, key: Key) -> None:
        service = self.services.get(*key)
        if service is None or not service["spec"].get("selector"):
            return
        if not any(port.get("port") == 443 for port in service["spec"].get("ports") or []):
            return
        target = f"{self._server.url}/{key[0]}/{key[1]}" if self._serves(service) else REFUSED
        if self.sim.options.webhook_url_mode:
            await self._rewrite(key, target)
        elif (service["metadata"].get("annotations") or {}).get(FORWARD_TO) != target:
            await self.patch(service, {"metadata": {"annotations": {FORWARD_TO: target}}})

    def _serves(self, service: Object) -> bool:
        if service["metadata"]["name"] == "queue-controller" and self.sim.faults.on("queue_webhook_down"):
            return False
        pods = self.sim.of("pods").all(service["metadata"]["namespace"], service["spec"]["selector"])
        return any(pod_ready(pod) and not pod["metadata"].get("deletionTimestamp") for pod in pods)

    async def _rewrite(self, key: Key, target: str) -> None:
        """For a real API server, which cannot reach a simulated service: the configuration names our URL itself.

        Where nothing serves, the URL's port is one (discard) that refuses connections.
        """
        base = target if target != REFUSED else f"https://127.0.0.1:9/{key[0]}/{key[1]}"
        bundle = base64.b64encode(self._server.certificate).decode()
        for plural in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
            for configuration in self.sim.of(plural).all():
                patch: list[Object] = []
                for index, webhook in enumerate(configuration.get("webhooks") or []):
                    client = webhook["clientConfig"]
                    path = _webhook_path(client, key)
                    value = {"url": f"{base}{path}", "caBundle": bundle}
                    if path is None or client == value:
                        continue
                    patch.append({"op": "replace", "path": f"/webhooks/{index}/clientConfig", "value": value})
                if patch:
                    await self.patch(configuration, patch, content_type=JSON_PATCH)


def _webhook_path(client: Mapping[str, Any], key: Key) -> str | None:
    """The path of a webhook if it is one of that service, whether it was rewritten already or not."""
    service = client.get("service")
    if service:
        return str(service.get("path", "")) if (service["namespace"], service["name"]) == key else None
    marker = f"/{key[0]}/{key[1]}/"
    url = str(client.get("url", ""))
    return "/" + url.partition(marker)[2] if marker in url else None
