"""Faults of image and chart registries, in the words of helm 3.22 and 4.3, docker, containerd 1.6 and 2.x."""

from __future__ import annotations

from kai_lab_pipeline.lab.diagnosis.model import CLASS, EXACT, NAMED, SYMPTOM, Fault, said

_URL = r"https?://(?P<host>[^/\"\s]{1,200})/v2/"

FAULTS: tuple[Fault, ...] = (
    Fault(
        id="registry.rate-limit",
        component="registry",
        title="toomanyrequests: You have reached your unauthenticated pull rate limit",
        cause="The registry {host} has had enough pulls from this address for now. It says nothing about the version.",
        remedy=(
            "docker login {host}",
            "or give a mirror in lab.toml [mirrors] (KAI_LAB_MIRRORS), or load the images beforehand",
            "or run it again in some hours",
        ),
        signs=(
            said("toomanyrequests", rf"(?:{_URL}.{{0,400}})?toomanyrequests", EXACT),
            said("429 too many requests", rf"(?:{_URL}.{{0,400}})?429 too many requests", EXACT),
            said("status code 429", rf"(?:{_URL}.{{0,400}})?status code 429", EXACT),
            said("pull rate limit", at=EXACT),
        ),
        transient=True,
        defaults={"host": "docker.io"},
        links=("https://github.com/kata-containers/kata-containers/issues/10100",),
        explains=("pod.image-pull", "pod.image-not-found", "helm.*"),
    ),
    Fault(
        id="registry.unauthorized",
        component="registry",
        title="401 unauthorized: authentication required / basic credential not found",
        cause="The registry {host} wants a login, and none (or a wrong one) was given.",
        remedy=(
            "helm registry login {host}",
            "docker login {host}",
            "If the chart or image is public: helm registry logout {host} (an expired login is sent too)",
        ),
        signs=(
            said("basic credential not found", rf"{_URL}", EXACT),
            said("unauthorized: authentication required", rf"(?:{_URL}.{{0,400}})?unauthorized", NAMED),
            said("status code 401", rf"(?:{_URL}.{{0,400}})?status code 401", NAMED),
            said("no basic auth credentials"),
            said("failed to fetch anonymous token", r"https?://(?P<host>[^/\"\s]{1,200})/.{0,400}401"),
            said("failed to fetch oauth token", r"https?://(?P<host>[^/\"\s]{1,200})/.{0,400}401"),
            said("authorization failed: no basic auth"),
            said("authenticating to ", r'authenticating to "(?P<host>[^"]{1,200})"', EXACT),
        ),
        defaults={"host": "ghcr.io"},
        links=("https://github.com/deliveryhero/helm-charts/issues/773",),
        explains=("pod.image-pull", "pod.image-not-found"),
    ),
    Fault(
        id="registry.denied",
        component="registry",
        title="403 denied: denied / denied: requested access to the resource is denied",
        cause="The registry {host} refuses access. For a public chart or image this is nearly always an expired "
        "login in "
        "~/.docker/config.json or helm's registry config; helm 3.13.0 also had a bug of that look.",
        remedy=(
            "helm registry logout {host}",
            "docker logout {host}",
            "helm version",
            "Check the name letter by letter",
        ),
        signs=(
            said("status code 403", rf"(?:{_URL}.{{0,400}})?status code 403", EXACT),
            said("denied: denied", at=EXACT),
            said("403: denied", at=EXACT),
            said("denied: requested access", rf"(?:{_URL}.{{0,400}})?denied: requested access", EXACT),
            said("pull access denied", r"pull access denied for (?P<image>[^\s,]{1,200})"),
            said("insufficient_scope: authorization failed"),
            said("403 forbidden", rf"(?:{_URL}).{{0,400}}403 forbidden", EXACT),
        ),
        defaults={"host": "ghcr.io"},
        links=(
            "https://github.com/akuity/kargo/issues/777",
            "https://github.com/deliveryhero/helm-charts/issues/773",
            "https://github.com/helm/helm/issues/12449",
        ),
        versions="helm 3.13.0 and any with an expired login",
        explains=("pod.image-pull", "pod.image-not-found"),
    ),
    Fault(
        id="registry.not-found",
        component="registry",
        title='failed to perform "FetchReference" on source: ...: not found',
        cause="The registry has no {reference}. Tags count letter by letter: 0.17.0 is not v0.17.0 and 1.1.0 is not "
        "1.1.0-chart.",
        remedy=(
            "kai-lab versions",
            "helm show chart oci://REPOSITORY --version VERSION",
            "Correct the version in lab.toml",
        ),
        signs=(
            said("on source:", r"on source: (?P<reference>[^\s\"]{1,300}): not found", EXACT),
            said(
                "status code 404",
                r"https?://[^/\s\"]{1,200}/v2/(?P<reference>\S{1,300})/(?:tags|manifests)/.{0,100}status code 404",
                EXACT,
            ),
            said("name unknown", r"name unknown: .{0,200}"),
            said("manifest unknown", at=NAMED),
        ),
        explains=("pod.image-pull",),
    ),
    Fault(
        id="registry.version-not-located",
        component="registry",
        title="Unable to locate any tags in provided repository / Could not locate a version matching provided "
        "version string",
        cause="Without an exact version helm skips tags that begin with v and pre-releases, so it finds none to "
        "take. KAI's tags "
        "begin with v, and the isolator's chart tags (1.1.0-chart) count as pre-releases.",
        remedy=(
            "helm install NAME oci://REPOSITORY --version v0.17.0",
            "helm install NAME oci://REPOSITORY --version 1.1.0-chart",
            "Never take v0.20.x of KAI for newer than v0.17: it is older and withdrawn",
        ),
        signs=(
            said("unable to locate any tags in provided repository", at=EXACT),
            said("could not locate a version matching provided version", at=EXACT),
        ),
        versions="helm 3.22 and 4.3",
    ),
    Fault(
        id="registry.plain-http",
        component="registry",
        title="http: server gave HTTP response to HTTPS client",
        cause="The registry speaks plain HTTP and the client insists on HTTPS. helm 3 falls back by itself, helm 4 "
        "and containerd do not.",
        remedy=(
            "helm install ... --plain-http",
            'Write the mirror with http:// in lab.toml: [mirrors] "docker.io" = "http://127.0.0.1:5000"',
            "For docker: list it under insecure-registries in /etc/docker/daemon.json",
        ),
        signs=(said("server gave http response to https client", rf"(?:{_URL})?", EXACT),),
        versions="helm 4, containerd, docker",
        explains=("pod.image-pull",),
    ),
    Fault(
        id="registry.https-only",
        component="registry",
        title="response status code 400: Bad Request (client sent an HTTP request to an HTTPS server)",
        cause="The registry speaks HTTPS and was asked in plain HTTP.",
        remedy=("Leave --plain-http away, or write the mirror with https:// in lab.toml [mirrors]",),
        signs=(
            said("status code 400", rf"{_URL}.{{0,400}}status code 400", NAMED),
            said("client sent an http request to an https server", at=EXACT),
        ),
    ),
    Fault(
        id="registry.tls",
        component="registry",
        title="tls: failed to verify certificate: x509: certificate signed by unknown authority (registry)",
        cause="The registry {host} shows a certificate that this machine does not trust: its own authority, or a "
        "proxy that opens TLS.",
        remedy=(
            "Name the authority's PEM file in lab.toml ca_file (KAI_LAB_CA_FILE)",
            "openssl s_client -connect {host} -showcerts",
        ),
        signs=(said("x509: ", rf"{_URL}.{{0,400}}x509: ", NAMED),),
        explains=("pod.image-pull",),
    ),
    Fault(
        id="registry.server-error",
        component="registry",
        title="response status code 500 / 502 / 503 (registry)",
        cause="The registry {host} has trouble of its own. It says nothing about the version.",
        remedy=("Run it again later, or give a mirror in lab.toml [mirrors]",),
        signs=(
            said("status code 50", rf"(?:{_URL}.{{0,400}})?status code 50[0-9]"),
            said("unexpected status from", r"unexpected status from .{0,300}\b50[0-9]\b"),
            said("received unexpected http status", r"unexpected HTTP status: 50[0-9]"),
        ),
        transient=True,
        defaults={"host": ""},
        explains=("pod.image-pull",),
    ),
    Fault(
        id="registry.down",
        component="registry",
        title='Get "https://.../v2/...": dial tcp: connect: connection refused (registry)',
        cause="Nothing listens at the registry {host}.",
        remedy=("curl -sS https://{host}/v2/", "Start it, or correct lab.toml [mirrors]"),
        signs=(
            said("connection refused", rf"{_URL}.{{0,400}}connection refused", NAMED),
            said("connection reset by peer", rf"{_URL}.{{0,400}}connection reset", NAMED),
        ),
        transient=True,
        explains=("pod.image-pull", "net.*"),
    ),
    Fault(
        id="registry.dns",
        component="registry",
        title="dial tcp: lookup registry-1.docker.io: no such host",
        cause="The name of the registry {host} cannot be resolved: no network, no DNS, or a wrong name.",
        remedy=("getent hosts {host}", "Without internet: give mirrors in lab.toml [mirrors], or image archives"),
        signs=(
            said("no such host", rf"{_URL}.{{0,400}}no such host", NAMED),
            said("server misbehaving", rf"{_URL}.{{0,400}}server misbehaving", NAMED),
            said("temporary failure in name resolution", rf"{_URL}.{{0,400}}temporary failure", NAMED),
        ),
        transient=True,
        explains=("pod.image-pull", "net.*"),
    ),
    Fault(
        id="registry.timeout",
        component="registry",
        title='Get "https://.../v2/": i/o timeout / TLS handshake timeout (registry)',
        cause="The registry {host} does not answer in time: a firewall, a proxy that is not set, or a slow line.",
        remedy=("curl -sS -m 10 https://{host}/v2/", "env | grep -i proxy", "or give a mirror in lab.toml [mirrors]"),
        signs=(
            said("timeout", rf"{_URL}.{{0,400}}(?:i/o|handshake) timeout", NAMED),
            said("client.timeout exceeded while awaiting headers", rf"{_URL}", NAMED),
            said("request canceled while waiting for connection", rf"{_URL}", NAMED),
            said("context deadline exceeded", rf"{_URL}.{{0,400}}context deadline exceeded", NAMED),
            said("network is unreachable", rf"{_URL}.{{0,400}}network is unreachable", NAMED),
            said("no route to host", rf"{_URL}.{{0,400}}no route to host", NAMED),
        ),
        transient=True,
        explains=("pod.image-pull", "net.*"),
    ),
    Fault(
        id="registry.platform",
        component="registry",
        title="no matching manifest for linux/arm64 in the manifest list entries / exec format error",
        cause="The image is not there for this machine's processor.",
        remedy=(
            "uname -m",
            "docker manifest inspect IMAGE",
            "Name an image of this platform, or a machine of the image's",
        ),
        signs=(
            said("no matching manifest for", at=EXACT),
            said("no match for platform in manifest", at=EXACT),
            said("exec format error", at=EXACT),
        ),
        explains=("pod.crash-loop", "pod.image-pull", "pod.start-error"),
    ),
    Fault(
        id="registry.digest",
        component="registry",
        title="failed size validation / unexpected commit digest / digest did not match",
        cause="What the registry or a mirror delivered is not what its digest names: a broken cache or a proxy that "
        "changes content.",
        remedy=("Pull it again without the mirror", "Remove the mirror's cached copy"),
        signs=(
            said("failed size validation"),
            said("unexpected commit digest"),
            said("digest did not match"),
            said("content digest mismatch", at=CLASS),
        ),
        transient=True,
    ),
    Fault(
        id="net.dns",
        component="network",
        title="dial tcp: lookup ...: no such host",
        cause="The name {host} cannot be resolved: no network, no DNS, or a wrong name.",
        remedy=("getent hosts {host}", "cat /etc/resolv.conf", "Without internet: mirrors or archives in lab.toml"),
        signs=(
            said("no such host", r"lookup (?P<host>[^\s:]{1,200})", CLASS),
            said("temporary failure in name resolution", at=CLASS),
            said("name or service not known", at=CLASS),
            said("could not resolve host", r"could not resolve host: (?P<host>\S{1,200})", CLASS),
            said("server misbehaving", r"lookup (?P<host>[^\s:]{1,200})", CLASS),
        ),
        transient=True,
    ),
    Fault(
        id="net.refused",
        component="network",
        title="connect: connection refused",
        cause="Nothing listens at {address}: what should answer there is not started, not ready yet, or elsewhere.",
        remedy=("Look at what should listen at {address}: kubectl get pods -A", "ss -ltnp"),
        signs=(said("connection refused", r"(?:dial tcp (?P<address>[\w.:\[\]-]{3,60}):? )?", SYMPTOM),),
        transient=True,
    ),
    Fault(
        id="net.unreachable",
        component="network",
        title="network is unreachable / no route to host / i/o timeout",
        cause="The network does not carry this: a firewall, a missing route, or a proxy that is not set.",
        remedy=("ip route", "env | grep -i proxy", "curl -m 10 -sS ADDRESS"),
        signs=(
            said("network is unreachable", at=SYMPTOM + 5),
            said("no route to host", at=SYMPTOM + 5),
            said("i/o timeout", at=SYMPTOM),
            said("tls handshake timeout", at=SYMPTOM),
            said("connection timed out", at=SYMPTOM),
        ),
        transient=True,
    ),
    Fault(
        id="net.tls",
        component="network",
        title="x509: certificate signed by unknown authority",
        cause="The certificate that was shown is not trusted here, or is for another name.",
        remedy=("openssl s_client -connect HOST:PORT -showcerts", "Name the authority's PEM file in lab.toml ca_file"),
        signs=(
            said("x509: ", at=SYMPTOM),
            said("certificate verify failed", at=SYMPTOM),
        ),
    ),
)
