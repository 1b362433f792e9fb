"""Asking OCI registries: which tags a chart has, what they hold, and fetching one.

The distribution API as ghcr.io, Docker Hub and plain registries speak it: pagination by Link, the anonymous token
dance, mirrors, own certificates, proxies. HTTPS everywhere, except on loopback and where a mirror says http://.
Every failure is a `RegistryError` that says which registry, what was seen and what to do.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any
from urllib.parse import urlsplit

import httpx
import tenacity

from kai_lab_pipeline.clients.docker_config import Credentials, Login, canonical_host, docker_config_file, login_for
from kai_lab_pipeline.clients.loopback import is_loopback
from kai_lab_pipeline.clients.mirrors import Mirrors, login_file
from kai_lab_pipeline.clients.oci_errors import (
    DigestMismatch,
    NotAChart,
    RegistryAnswerError,
    RegistryRateLimited,
    RegistryServerError,
    RegistryTimeout,
    from_status,
)
from kai_lab_pipeline.clients.oci_transport import Answer, Errand, Transport, origin
from kai_lab_pipeline.lab.errors import WrongUse
from kai_lab_pipeline.settings import Settings

CONFIG_MEDIA_TYPE = "application/vnd.cncf.helm.config.v1+json"
CHART_MEDIA_TYPE = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
MANIFEST_MEDIA_TYPE = "application/vnd.oci.image.manifest.v1+json"
_ACCEPT = ", ".join(
    (
        MANIFEST_MEDIA_TYPE,
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
    )
)
_DOCKER_HUB_API = "registry-1.docker.io"
_PAGE = 1000
_MAX_PAGES = 500
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_HOST = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_NAME = re.compile(r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*")


@dataclass(frozen=True)
class Repository:
    """A repository as a chart reference names it, and where it is really asked for."""

    host: str
    name: str
    base: str
    """Scheme, host and port of the registry or its mirror."""
    path: str
    """Repository name there: a mirror may keep it below a prefix."""
    mirror_login: Credentials | None = field(default=None, repr=False)

    def __str__(self) -> str:
        real = f"{urlsplit(self.base).netloc}/{self.path}"
        named = f"{self.host}/{self.name}"
        return named if real == named else f"{named} (asked at {self.base}/v2/{self.path})"

    def url(self, rest: str) -> str:
        return f"{self.base}/v2/{self.path}/{rest}"


def tag_of(version: str) -> str:
    """The tag of a chart version: tags cannot hold ``+``, helm writes ``_``."""
    return version.replace("+", "_")


class OciClient:
    """Reads from registries; safe to use for many repositories, one operation at a time. Close it, or use ``with``."""

    def __init__(
        self,
        *,
        mirrors: Mapping[str, str] | None = None,
        ca_file: Path | None = None,
        docker_config: Path | None = None,
        deadline_s: float = 30.0,
        timeout_s: float = 10.0,
        attempts: int = 3,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._addresses = {canonical_host(host): address for host, address in (mirrors or {}).items()}
        self._mirrors = Mirrors(mirrors or {})
        self._transport = Transport(ca_file, timeout_s)
        self._docker_config = docker_config
        self._deadline_s = deadline_s
        self._attempts = attempts
        self._sleep = sleep
        self._authorization: dict[tuple[str, str], str] = {}

    @classmethod
    def from_settings(cls, settings: Settings, **options: Any) -> OciClient:
        """A client with the settings' mirrors and certificates."""
        ca_file = settings.project_file(settings.ca_file) if settings.ca_file else None
        return cls(mirrors=settings.mirrors, ca_file=ca_file, **options)

    def __enter__(self) -> OciClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()

    def repository(self, reference: str) -> Repository:
        """Read ``oci://host[:port]/name``. Raises WrongUse for something else."""
        host, slash, name = reference.removeprefix("oci://").partition("/")
        name = name.rstrip("/")
        if not slash or not _HOST.fullmatch(host) or not _NAME.fullmatch(name):
            raise WrongUse(
                f"{reference!r} is no chart reference.",
                next_step="Write oci://<registry host>/<path>, without tag or version.",
            )
        address = self._addresses.get(canonical_host(host), "")
        if address and not re.match(r"(https?://)?[^/\s]*[^/\s:](/|$)", address):
            raise WrongUse(
                f"The mirror of {host} is no address of a registry.",
                next_step='Write e.g. {"docker.io": "http://127.0.0.1:5000"} (mirrors in lab.toml, KAI_LAB_MIRRORS).',
            )
        source = self._mirrors.of(host)
        real = _DOCKER_HUB_API if canonical_host(source.host) == "docker.io" else source.host
        base = f"{'http' if source.plain_http else 'https'}://{real}"
        path = f"{source.prefix}/{name}" if source.prefix else name
        return Repository(host, name, base, path, Credentials(*source.login) if source.login else None)

    def tags(self, reference: str) -> list[str]:
        """All tags of a repository, in the registry's order, each once. Raises RegistryError."""
        repository = self.repository(reference)
        errand = self._errand("Listing tags", repository)
        url = repository.url(f"tags/list?n={_PAGE}")
        found: dict[str, None] = {}
        visited: set[str] = set()
        while url:
            if url in visited or len(visited) >= _MAX_PAGES:
                raise RegistryAnswerError(
                    f"{errand.what}: the pages of the tag list do not end.",
                    where=errand.where,
                    seen=f"{len(visited)} pages, {len(found)} tags",
                    next_step="The registry's Link headers are wrong; tell its operator, or set another mirror.",
                )
            visited.add(url)
            answer = self._ask(repository, errand, "GET", url)
            document = _document(answer, errand)
            tags = (document["tags"] or []) if "tags" in document else None
            if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
                raise _no_registry(answer, errand)
            found.update(dict.fromkeys(tags))
            url = _next_page(answer, errand)
        return list(found)

    def digest(self, reference: str, tag: str) -> str:
        """``sha256:...`` of the manifest that a tag points at now. Raises RegistryError."""
        repository = self.repository(reference)
        errand = self._errand(f"Looking up the digest of {tag}", repository)
        url = repository.url(f"manifests/{_manifest_name(tag)}")
        answer = self._ask(repository, errand, "HEAD", url, accept=_ACCEPT)
        digest: str = answer.headers.get("docker-content-digest", "")
        if _DIGEST.fullmatch(digest):
            return digest
        answer = self._ask(repository, errand, "GET", url, accept=_ACCEPT)
        return "sha256:" + hashlib.sha256(answer.body).hexdigest()

    def chart_metadata(self, reference: str, tag: str) -> Mapping[str, Any]:
        """Chart.yaml of a chart as JSON, read without the archive. Raises RegistryError; NotAChart for an image."""
        repository = self.repository(reference)
        errand = self._errand(f"Reading chart {tag}", repository)
        config, _ = self._chart_parts(repository, tag, errand)
        answer = self._ask(repository, errand, "GET", repository.url(f"blobs/{config}"))
        _check_digest(hashlib.sha256(answer.body).hexdigest(), config, errand)
        return _document(answer, errand)

    def pull_chart(self, reference: str, tag: str, folder: Path) -> Path:
        """Fetch a chart archive into a folder (made if absent), checked against its digest. Raises RegistryError.

        The file appears whole or not at all.
        """
        repository = self.repository(reference)
        errand = self._errand(f"Fetching chart {tag}", repository)
        _, layer = self._chart_parts(repository, tag, errand)
        target = folder / f"{repository.name.rpartition('/')[2]}-{re.sub(r'[^0-9A-Za-z._+-]', '-', tag)}.tgz"
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".chart-", delete=False) as partial:
            try:
                self._ask(repository, errand, "GET", repository.url(f"blobs/{layer}"), sink=partial)
                partial.flush()
                partial.seek(0)
                _check_digest(hashlib.sha256(partial.read()).hexdigest(), layer, errand)
                os.replace(partial.name, target)
            except BaseException:
                Path(partial.name).unlink(missing_ok=True)
                raise
        return target

    def _errand(self, what: str, repository: Repository) -> Errand:
        return Errand(what, str(repository), self._deadline_s)

    def _chart_parts(self, repository: Repository, tag: str, errand: Errand) -> tuple[str, str]:
        """Digests of the config (Chart.yaml) and of the archive."""
        url = repository.url(f"manifests/{_manifest_name(tag)}")
        answer = self._ask(repository, errand, "GET", url, accept=_ACCEPT)
        manifest = _document(answer, errand)
        config = manifest.get("config")
        layers = manifest.get("layers")
        media_type = config.get("mediaType") if isinstance(config, dict) else manifest.get("mediaType")
        if not isinstance(config, dict) or media_type != CONFIG_MEDIA_TYPE:
            raise NotAChart(
                f"{errand.what}: the tag names no helm chart.",
                where=errand.where,
                seen=f"media type {media_type or 'unknown'}",
                next_step="It may be an image beside the charts: name a chart's tag.",
            )
        archives = [
            layer.get("digest")
            for layer in (layers if isinstance(layers, list) else [])
            if isinstance(layer, dict) and layer.get("mediaType") == CHART_MEDIA_TYPE
        ]
        digests = (str(config.get("digest")), str(archives[0]) if archives else "")
        if not all(_DIGEST.fullmatch(digest) for digest in digests):
            raise _no_registry(answer, errand)
        return digests

    def _ask(
        self,
        repository: Repository,
        errand: Errand,
        method: str,
        url: str,
        *,
        accept: str = "application/json",
        sink: IO[bytes] | None = None,
    ) -> Answer:
        """One request with credentials, tried again where waiting can help and the deadline allows."""

        def stop(state: tenacity.RetryCallState) -> bool:
            return state.attempt_number >= self._attempts or state.upcoming_sleep >= errand.left()

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_worth_waiting), wait=_wait, stop=stop, sleep=self._sleep, reraise=True
        )
        return retrying(self._ask_once, repository, errand, method, url, accept, sink)

    def _ask_once(
        self, repository: Repository, errand: Errand, method: str, url: str, accept: str, sink: IO[bytes] | None
    ) -> Answer:
        known = (repository.base, repository.path)
        headers = {"Accept": accept}
        if known in self._authorization:
            headers["Authorization"] = self._authorization[known]
        answer = self._transport.exchange(errand, method, url, headers, sink=sink)
        hint = ""
        if answer.status == 401:
            login = self._login(repository)
            hint = login.note
            self._authorization.pop(known, None)
            authorization = self._authorize(answer, repository, login, errand)
            if authorization:
                headers["Authorization"] = authorization
                answer = self._transport.exchange(errand, method, url, headers, sink=sink)
                if answer.status < 400:
                    self._authorization[known] = authorization
        _require_success(answer, errand, hint)
        return answer

    def _login(self, repository: Repository) -> Login:
        if repository.mirror_login is not None:
            return Login(repository.mirror_login)
        asked = urlsplit(repository.base).netloc
        return login_for(asked, self._docker_config or login_file(asked) or docker_config_file())

    def _authorize(self, refusal: Answer, repository: Repository, login: Login, errand: Errand) -> str | None:
        """The Authorization header that a 401 asks for; None when nothing can be offered."""
        challenge = refusal.headers.get("www-authenticate", "")
        bearer = re.search(r"\bbearer\s+(.*)", challenge, re.I | re.S)
        if bearer is None:
            basic = re.search(r"\bbasic\b", challenge, re.I)
            return _basic(login.credentials) if basic and login.credentials else None
        parameters = dict(re.findall(r'([a-z_]+)="([^"]*)"', bearer[1], re.I))
        realm = urlsplit(parameters.get("realm", ""))
        plain_allowed = repository.base.startswith("http://") or is_loopback(realm.hostname or "")
        if realm.scheme not in ("http", "https") or (realm.scheme == "http" and not plain_allowed):
            raise RegistryAnswerError(
                f"{errand.what}: the registry names a token service that is not safe to ask.",
                where=errand.where,
                seen=f"realm {realm.scheme or 'without scheme'}://{realm.hostname or ''}",
                next_step="A token service must speak HTTPS; check the registry's address.",
            )
        query = {"scope": parameters.get("scope") or f"repository:{repository.path}:pull"}
        if parameters.get("service"):
            query["service"] = parameters["service"]
        headers = {"Accept": "application/json"}
        form: dict[str, str] | None = None
        if login.credentials and login.credentials.identity_token:
            token = login.credentials.identity_token
            form = query | {"grant_type": "refresh_token", "refresh_token": token, "client_id": "kai-lab"}
        elif login.credentials:
            headers["Authorization"] = _basic(login.credentials)
        url = parameters["realm"] if form else str(httpx.URL(parameters["realm"]).copy_merge_params(query))
        answer = self._transport.exchange(errand, "POST" if form else "GET", url, headers, form=form)
        _require_success(answer, errand, login.note)
        document = _document(answer, errand)
        bearer_token = document.get("token") or document.get("access_token")
        if not isinstance(bearer_token, str) or not re.fullmatch(r"[!-~]+", bearer_token):
            raise _no_registry(answer, errand)
        return f"Bearer {bearer_token}"


def _manifest_name(version: str) -> str:
    tag = tag_of(version)
    if not _TAG.fullmatch(tag):
        raise WrongUse(f"{version!r} can be no tag.", next_step="A tag has letters, digits, '.', '_' and '-' only.")
    return tag


def _basic(credentials: Credentials) -> str:
    pair = f"{credentials.username}:{credentials.password}".encode()
    return "Basic " + base64.b64encode(pair).decode("ascii")


def _worth_waiting(error: BaseException) -> bool:
    busy = isinstance(error, RegistryServerError) and error.status == 503
    return busy or isinstance(error, RegistryRateLimited | RegistryTimeout)


def _wait(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome is not None else None
    asked = getattr(error, "retry_after", None)
    return float(asked) if asked is not None else 0.5 * 2.0 ** (state.attempt_number - 1)


def _require_success(answer: Answer, errand: Errand, hint: str) -> None:
    if answer.status >= 300:
        raise from_status(answer.status, answer.headers, answer.body, what=errand.what, where=errand.where, hint=hint)


def _document(answer: Answer, errand: Errand) -> Mapping[str, Any]:
    try:
        document = json.loads(answer.body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise _no_registry(answer, errand)
    return document


def _no_registry(answer: Answer, errand: Errand) -> RegistryAnswerError:
    kind = answer.headers.get("content-type", "no content type")
    if answer.beginning().startswith("<") or "html" in kind:
        what, step = "a web page", "Is that address a registry? A proxy's log-in page answers like that too."
    else:
        what = "not what the distribution API says"
        step = "The registry or a proxy before it is broken: try again, or set another mirror."
    return RegistryAnswerError(
        f"{errand.what}: the answer is {what}.",
        where=errand.where,
        seen=f"HTTP {answer.status}, {kind}: {answer.beginning()}",
        next_step=step,
    )


def _next_page(answer: Answer, errand: Errand) -> str:
    target = httpx.Response(200, headers=answer.headers).links.get("next", {}).get("url")
    if not target:
        return ""
    following = answer.url.join(target)
    if origin(following) != origin(answer.url):
        raise RegistryAnswerError(
            f"{errand.what}: the next page is on another host.",
            where=errand.where,
            seen=f"{following.scheme}://{following.host}",
            next_step="Behind a proxy the registry must know its public address; or set another mirror.",
        )
    return str(following)


def _check_digest(got: str, wanted: str, errand: Errand) -> None:
    if f"sha256:{got}" != wanted:
        raise DigestMismatch(
            f"{errand.what}: the content is not what its digest says.",
            where=errand.where,
            seen=f"sha256:{got[:12]}..., announced {wanted[:19]}...",
            next_step="Try again; if it stays, the registry or a proxy alters content: do not use it.",
        )
