"""Dynamic admission: the webhook configurations that are stored are called, as kube-apiserver v1.34 calls them.

The one difference: a rehearsal has no cluster network. A webhook's Service says in the annotation
`rehearsal.kai-lab/forward-to` where on the loopback it is answered, or `refused` while nobody listens.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kai_lab_pipeline.rehearsal.api.cel import CelError, evaluate
from kai_lab_pipeline.rehearsal.api.errors import ApiError, Obj, forbidden, internal
from kai_lab_pipeline.rehearsal.api.patches import json_patch
from kai_lab_pipeline.rehearsal.api.resources import Resource
from kai_lab_pipeline.rehearsal.api.selectors import matches_structure
from kai_lab_pipeline.rehearsal.store import Store, encode

if TYPE_CHECKING:
    import httpx

FORWARD_TO = "rehearsal.kai-lab/forward-to"
_GROUP = "admissionregistration.k8s.io"


class _CallFailed(Exception):
    """The webhook gave no usable answer; `failurePolicy` decides what that means."""


@dataclass(frozen=True)
class Operation:
    """What is being done, as admission sees it."""

    verb: str
    """CREATE, UPDATE, DELETE or CONNECT."""
    resource: Resource
    namespace: str
    name: str
    old: Obj | None
    dry_run: bool
    subresource: str = ""
    options: Obj | None = None


class Webhooks:
    """Calls the matching webhooks of the stored configurations."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._clients: dict[str, httpx.AsyncClient] = {}

    async def close(self) -> None:
        for client in self._clients.values():
            await client.aclose()

    async def mutate(self, operation: Operation, obj: Obj, warnings: list[str]) -> Obj:
        """The object after all mutating webhooks, in the order of their configurations' names.

        Raises: ApiError when a webhook denies (its code, 403 by default) or fails under failurePolicy Fail (500).
        """
        hooks = self._matching("mutatingwebhookconfigurations", operation)
        if not hooks:
            return obj
        seen: list[tuple[Obj, Obj]] = []
        for hook in hooks:
            changed = await self._mutate_once(hook, operation, obj, warnings)
            seen.append((hook, changed))
            obj = changed
        for hook, left in seen:
            if hook.get("reinvocationPolicy") == "IfNeeded" and left != obj:
                obj = await self._mutate_once(hook, operation, obj, warnings)
        return obj

    async def _mutate_once(self, hook: Obj, operation: Operation, obj: Obj, warnings: list[str]) -> Obj:
        response = await self._ask(hook, operation, obj, warnings)
        if not response or not response.get("patch"):
            return obj
        try:
            operations = json.loads(base64.b64decode(response["patch"]))
            return json_patch(obj, operations)
        except (ValueError, ApiError) as error:
            said = error.message if isinstance(error, ApiError) else str(error)
            raise internal(f'failed calling webhook "{hook["name"]}": failed to apply patch: {said}') from error

    async def validate(self, operation: Operation, obj: Obj | None, warnings: list[str]) -> None:
        """Ask all validating webhooks at once; the first refusal in the order of names counts.

        Raises: ApiError as `mutate`.
        """
        hooks = self._matching("validatingwebhookconfigurations", operation)
        answers = await asyncio.gather(
            *(self._ask(hook, operation, obj, warnings) for hook in hooks), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    def _matching(self, plural: str, operation: Operation) -> list[Obj]:
        found: list[Obj] = []
        if operation.resource.group == _GROUP:  # a broken webhook must not lock people out of its own removal
            return found
        for _, stored in self._store.objects(f"{plural}.{_GROUP}"):
            hooks = stored.obj.get("webhooks") or ()
            found += [hook for hook in hooks if any(_rule_matches(rule, operation) for rule in hook.get("rules") or ())]
        return found

    def _selected(self, hook: Obj, operation: Operation, obj: Obj | None) -> bool:
        if operation.namespace or operation.resource.plural == "namespaces":
            name = operation.namespace or operation.name
            stored = self._store.get("namespaces", ("", name))
            labels = (stored.obj["metadata"].get("labels") or {}) if stored else {}
            if not matches_structure(hook.get("namespaceSelector"), labels):
                return False
        candidates = [candidate for candidate in (obj, operation.old) if candidate is not None]
        if not any(
            matches_structure(hook.get("objectSelector"), candidate["metadata"].get("labels") or {})
            for candidate in candidates
        ):
            return False
        for condition in hook.get("matchConditions") or ():
            try:
                if not evaluate(condition["expression"], object=obj, oldObject=operation.old):
                    return False
            except CelError as error:
                if hook.get("failurePolicy") == "Ignore":
                    return False
                resource = operation.resource
                why = f"failed evaluating match condition {condition['name']!r}: {error}"
                raise forbidden(resource.group, resource.plural, operation.name, why) from error
        return True

    async def _ask(self, hook: Obj, operation: Operation, obj: Obj | None, warnings: list[str]) -> Obj | None:
        """The webhook's response; None when it does not apply or its failure is ignored."""
        if not self._selected(hook, operation, obj):
            return None
        review = _review(operation, obj)
        try:
            response = await self._call(hook, review)
        except _CallFailed as error:
            if hook.get("failurePolicy") == "Ignore":
                return None
            raise internal(f'failed calling webhook "{hook["name"]}": {error}') from error
        warnings += response.get("warnings") or ()
        if not response.get("allowed"):
            raise _denial(hook["name"], response.get("status") or {})
        return response

    async def _call(self, hook: Obj, review: Obj) -> Obj:
        timeout = float(hook.get("timeoutSeconds") or 10)
        said_url, real_url, bundle = self._resolve(hook["clientConfig"], timeout)
        import httpx

        try:
            client = self._client(real_url, bundle)
            answer = await client.post(
                real_url, content=encode(review), headers={"Content-Type": "application/json"}, timeout=timeout
            )
        except httpx.TimeoutException as error:
            raise _CallFailed(f'failed to call webhook: Post "{said_url}": context deadline exceeded') from error
        except (httpx.TransportError, ssl.SSLError) as error:
            raise _CallFailed(f'failed to call webhook: Post "{said_url}": {_cause(error, real_url)}') from error
        if answer.status_code != 200:
            why = f'an error on the server ("{answer.text.strip()}") has prevented the request from succeeding'
            raise _CallFailed(f"failed to call webhook: {why}")
        try:
            body = answer.json()
            response = body["response"]
            uid = response["uid"]
        except (ValueError, KeyError, TypeError) as error:
            raise _CallFailed(
                f"failed to call webhook: couldn't get version/kind; json parse error: {error}"
            ) from error
        if uid != review["request"]["uid"]:
            expected = review["request"]["uid"]
            raise internal(
                f'failed calling webhook "{hook["name"]}": received invalid webhook response: '
                f'expected response.uid="{expected}", got "{uid}"'
            )
        return dict(response)

    def _resolve(self, config: Obj, timeout: float) -> tuple[str, str, str]:
        """(the URL as error texts say it, the URL to call, the CA bundle in base64)."""
        bundle = config.get("caBundle") or ""
        if config.get("url"):
            url = f"{config['url']}?timeout={timeout:g}s"
            return url, url, bundle
        service = config["service"]
        port, path = service.get("port") or 443, service.get("path") or "/"
        said = f"https://{service['name']}.{service['namespace']}.svc:{port}{path}?timeout={timeout:g}s"

        def failed(cause: str) -> _CallFailed:
            return _CallFailed(f'failed to call webhook: Post "{said}": {cause}')

        stored = self._store.get("services", (service["namespace"], service["name"]))
        if stored is None:
            raise failed(f'service "{service["name"]}" not found')
        target = (stored.obj["metadata"].get("annotations") or {}).get(FORWARD_TO)
        if not target:
            raise failed(f'no endpoints available for service "{service["name"]}"')
        if target == "refused":
            raise failed(f"dial tcp {stored.obj['spec'].get('clusterIP')}:{port}: connect: connection refused")
        return said, f"{target.rstrip('/')}{path}?timeout={timeout:g}s", bundle

    def _client(self, url: str, bundle: str) -> httpx.AsyncClient:
        import httpx

        key = bundle if url.startswith("https") else ""
        if key not in self._clients:
            verify: ssl.SSLContext | bool = True
            if key:
                verify = ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
            # No connection is kept: one to a webhook that has stopped since would fail in other words.
            limits = httpx.Limits(max_keepalive_connections=0)
            self._clients[key] = httpx.AsyncClient(verify=verify, trust_env=False, limits=limits)
        return self._clients[key]


def _rule_matches(rule: Obj, operation: Operation) -> bool:
    resource = operation.resource
    wanted = f"{resource.plural}/{operation.subresource}" if operation.subresource else resource.plural

    def covers(pattern: str) -> bool:
        if pattern == "*":
            return not operation.subresource
        return pattern in ("*/*", wanted, f"{resource.plural}/*")

    scope = rule.get("scope", "*")
    return (
        any(verb in ("*", operation.verb) for verb in rule.get("operations") or ())
        and any(group in ("*", resource.group) for group in rule.get("apiGroups") or ())
        and any(version in ("*", resource.version) for version in rule.get("apiVersions") or ())
        and any(covers(pattern) for pattern in rule.get("resources") or ())
        and scope in ("*", "Namespaced" if resource.namespaced else "Cluster")
    )


def _review(operation: Operation, obj: Obj | None) -> Obj:
    resource = operation.resource
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    path = {"group": resource.group, "version": resource.version, "resource": resource.plural}
    request: Obj = {
        "uid": str(uuid.uuid4()),
        "kind": kind,
        "resource": path,
        "requestKind": kind,
        "requestResource": path,
        "name": operation.name,
        "operation": operation.verb,
        "userInfo": {"username": "kubernetes-admin", "groups": ["kubeadm:cluster-admins", "system:authenticated"]},
        "object": obj,
        "oldObject": operation.old,
        "dryRun": operation.dry_run,
        "options": operation.options,
    }
    if operation.namespace:
        request["namespace"] = operation.namespace
    if operation.subresource:
        request["subResource"] = request["requestSubResource"] = operation.subresource
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}


def _denial(name: str, status: Obj) -> ApiError:
    message = f'admission webhook "{name}" denied the request'
    if status.get("message") or status.get("reason"):
        message += f": {status.get('message') or status.get('reason')}"
    else:
        message += " without explanation"
    # kube-apiserver adds nothing: without a code it is 400, without a reason there is none.
    return ApiError(
        max(int(status.get("code") or 400), 400), status.get("reason") or "", message, status.get("details")
    )


def _cause(error: Exception, url: str) -> str:
    """A transport error in Go's words."""
    text = str(error)
    parts = urlsplit(url)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        if "hostname" in text.lower() or "IP address mismatch" in text:
            return f"tls: failed to verify certificate: x509: certificate is not valid for {parts.hostname}"
        return "tls: failed to verify certificate: x509: certificate signed by unknown authority"
    if "WRONG_VERSION_NUMBER" in text or "RECORD_LAYER" in text:
        return "tls: first record does not look like a TLS handshake"
    if isinstance(error, ssl.SSLError):
        return f"tls: {text}"
    if "connect" in type(error).__name__.lower():
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return f"dial tcp {parts.hostname}:{port}: connect: connection refused"
    return "EOF"


def review_answer(kind: str, group: str, body: Obj) -> Obj:
    """The answer to a self review: this server lets everyone with its token do everything."""
    answer: Obj = {"metadata": {}, **body, "kind": kind, "apiVersion": f"{group}/v1"}
    user: dict[str, Any] = {"username": "kubernetes-admin", "groups": ["system:masters", "system:authenticated"]}
    answer["status"] = {
        "SelfSubjectReview": {"userInfo": user},
        "TokenReview": {"authenticated": True, "user": user},
        "SelfSubjectRulesReview": {
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            "incomplete": False,
        },
    }.get(kind, {"allowed": True})
    return answer
