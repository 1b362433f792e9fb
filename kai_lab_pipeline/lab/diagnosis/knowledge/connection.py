"""The API server cannot be reached, or does not know who asks: kubeconfig, TLS, credentials. kubectl 1.34, client "
"34 and 35."""

from __future__ import annotations

from kai_lab_pipeline.lab.diagnosis.knowledge.commands import RENEW
from kai_lab_pipeline.lab.diagnosis.model import CLASS, EXACT, NAMED, Fault, said, seen

PYTHON = "https://github.com/kubernetes-client/python"

FAULTS: tuple[Fault, ...] = (
    Fault(
        id="kubernetes.context-missing",
        component="kubeconfig",
        title='context "..." does not exist / context was not found for specified context',
        cause="The kubeconfig has no context {context}.",
        remedy=("kubectl config get-contexts", "Name an existing one in lab.context (KAI_LAB_CONTEXT)"),
        signs=(
            said("does not exist", r'context "(?P<context>[^"]{1,200})" does not exist', EXACT),
            said("context was not found for specified context", r"specified context: (?P<context>\S{1,200})", EXACT),
            said("no context exists with the name", r'with the name:? "?(?P<context>[^"\s]{1,200})', EXACT),
            said(
                "expected object with name",
                r"Expected object with name (?P<context>\S{1,200}) in .{1,300}contexts list",
                EXACT,
            ),
            said("current-context is not set", at=NAMED),
        ),
        links=(f"{PYTHON}/issues/2180", f"{PYTHON}/issues/1193"),
        defaults={"context": "of that name"},
    ),
    Fault(
        id="kubernetes.kubeconfig-absent",
        component="kubeconfig",
        title="The connection to the server localhost:8080 was refused",
        cause="There is no kubeconfig, or an empty one: clients then try localhost:8080, where nothing listens.",
        remedy=(
            "echo $KUBECONFIG",
            "export KUBECONFIG=.lab/{cluster}/kubeconfig",
            RENEW,
        ),
        signs=(
            said("localhost:8080", r"localhost:8080.{0,300}refused", EXACT),
            said("invalid kube-config file. no configuration found", at=EXACT),
            said("no configuration has been provided", at=EXACT),
        ),
        explains=("kubernetes.api-down", "kubernetes.unreachable", "net.*"),
        elsewhere=(
            "echo $KUBECONFIG",
            "kubectl config get-contexts",
            "Name the context in lab.context (KAI_LAB_CONTEXT)",
        ),
    ),
    Fault(
        id="kubernetes.kubeconfig-broken",
        component="kubeconfig",
        title="error loading config file",
        cause="The kubeconfig {file} cannot be read: it is not YAML, was cut off, or its path is a list that a "
        "client takes for one file.",
        remedy=("kubectl --kubeconfig {file} config view", f"If it is the lab's own: {RENEW}"),
        signs=(
            said("error loading config file", r'config file "(?P<file>[^"]{1,300})"', EXACT),
            said("invalid kube-config file", at=NAMED),
        ),
        links=(f"{PYTHON}/issues/2394",),
        explains=("kubernetes.manifest-yaml", "kubernetes.unreachable"),
        elsewhere=(
            "kubectl --kubeconfig {file} config view",
            "Get the cluster's kubeconfig anew from whoever made it",
        ),
    ),
    Fault(
        id="kubernetes.exec-plugin",
        component="kubeconfig",
        title="getting credentials: exec: executable ... not found",
        cause="The kubeconfig asks the credential plugin {plugin} for a login, and that failed.",
        remedy=("{plugin} --version", "Log in to the cluster again, then: kubectl get nodes"),
        signs=(
            said("getting credentials: exec", r"exec(?:utable|): (?:executable )?(?P<plugin>[\w./-]{1,100})?", EXACT),
        ),
        defaults={"plugin": "the plugin"},
    ),
    Fault(
        id="kubernetes.unauthorized",
        component="kubernetes",
        title="You must be logged in to the server (Unauthorized) / the server has asked for the client to provide "
        "credentials",
        cause="The API server does not know the caller: the token or client certificate is wrong or ran out, or is "
        "of another cluster.",
        remedy=("kubectl config current-context", "kubectl auth whoami", RENEW),
        signs=(
            seen("status", code="401"),
            said("you must be logged in to the server", at=NAMED),
            said("asked for the client to provide credentials", at=NAMED),
            said("error from server (unauthorized)", at=NAMED),
            said("(401)", r"\(401\)\s*Reason: Unauthorized", NAMED),
        ),
        explains=("kubernetes.unreachable",),
        elsewhere=(
            "kubectl config current-context",
            "kubectl auth whoami",
            "Log in to the cluster again, then run it again",
        ),
    ),
    Fault(
        id="kubernetes.tls",
        component="kubernetes",
        title="Kubernetes cluster unreachable: tls: failed to verify certificate: x509",
        cause="The API server's certificate is not that of the kubeconfig: the kubeconfig is of another cluster, "
        "or the cluster was made anew under the same name.",
        remedy=("kubectl config view --minify", RENEW),
        signs=(
            said("x509: ", r"(?:cluster unreachable|unable to connect to the server).{0,300}x509: ", NAMED),
            said("cluster unreachable: ", r"cluster unreachable: .{0,300}tls: ", NAMED),
        ),
        elsewhere=(
            "kubectl config view --minify",
            "Get the cluster's kubeconfig anew from whoever made it",
        ),
    ),
    Fault(
        id="kubernetes.python-tls",
        component="kubernetes client",
        title="SSL: CERTIFICATE_VERIFY_FAILED: Missing Authority Key Identifier",
        cause="Python 3.13 checks certificates more strictly, and the cluster's authority lacks an extension that "
        "it wants.",
        remedy=("kai-lab down", "kai-lab run", "or use Python 3.12"),
        signs=(said("missing authority key identifier", at=EXACT),),
        versions="Python 3.13, clusters with older certificates",
        links=(f"{PYTHON}/issues/2394",),
        explains=("net.*", "kubernetes.tls"),
        elsewhere=("Use Python 3.12, or a cluster whose certificates are newer",),
    ),
    Fault(
        id="kubernetes.api-down",
        component="kubernetes",
        title="Kubernetes cluster unreachable / The connection to the server ... was refused",
        cause="The API server at {address} does not answer: the cluster is stopped, deleted, or was restarted on "
        "another port.",
        remedy=(
            "docker ps -a --filter label=io.x-k8s.kind.cluster",
            RENEW,
            "kai-lab status",
        ),
        signs=(
            said(
                "cluster unreachable",
                r"cluster unreachable: .{0,300}?(?:dial tcp (?P<address>[\w.:\[\]-]{3,60}): )?connect: connection "
                r"refused",
                NAMED + 5,
            ),
            said(
                "the connection to the server",
                r"connection to the server (?P<address>\S{3,100}) was refused",
                NAMED + 5,
            ),
            said(
                "couldn't get current server api group list", r"dial tcp (?P<address>[\w.:\[\]-]{3,60}): connect", NAMED
            ),
            said(
                "max retries exceeded with url", r"host='(?P<address>[^']{1,100})'.{0,200}max retries exceeded", NAMED
            ),
            said("failed to establish a new connection", at=CLASS),
            said("the api server does not answer", at=NAMED),
            said("http2: client connection lost", at=NAMED),
            said("the server was unable to return a response in the time allotted", at=NAMED),
            said("apiserver not ready", at=NAMED),
            said("etcdserver: ", r"etcdserver: (?:request timed out|leader changed|no leader)", NAMED),
        ),
        transient=True,
        defaults={"address": "its address"},
        explains=("net.*", "kubernetes.unreachable"),
        links=("https://github.com/kubernetes-sigs/kind/issues/3071",),
        elsewhere=(
            "kubectl config view --minify",
            "kubectl cluster-info",
            "kai-lab status",
        ),
    ),
    Fault(
        id="kubernetes.name-unresolved",
        component="kubernetes",
        title="Unable to connect to the server: dial tcp: lookup ...: no such host",
        cause="The name {host} in the kubeconfig or in the address of the manifest cannot be resolved.",
        remedy=("getent hosts {host}", "kubectl config view --minify"),
        signs=(said("unable to connect to the server", r"lookup (?P<host>[^\s:]{1,200}).{0,100}no such host", NAMED),),
        transient=True,
        explains=("net.*",),
    ),
    Fault(
        id="kubernetes.unreachable",
        component="kubernetes",
        title="Unable to connect to the server",
        cause="The API server could not be asked; the reason stands in the evidence.",
        remedy=("kubectl cluster-info", "kai-lab status"),
        signs=(
            said("unable to connect to the server", at=CLASS - 10),
            said("cluster unreachable", at=CLASS - 10),
        ),
        transient=True,
    ),
    Fault(
        id="kubernetes.too-many-requests",
        component="kubernetes",
        title="the server has received too many requests and has asked us to try again later",
        cause="The API server is overloaded and sheds requests.",
        remedy=("Run it again in a minute", "kubectl get --raw /readyz?verbose"),
        signs=(
            # Its reason TooManyRequests is also the word of a registry's limit: here it is said by the API server.
            seen("status", code="429", at=EXACT + 1),
            said("the server has received too many requests", at=EXACT + 1),
            said("error from server (toomanyrequests)", at=EXACT + 1),
            said("(429)", r"\(429\)\s*Reason: ", EXACT + 1),
        ),
        transient=True,
    ),
    Fault(
        id="kubernetes.unavailable",
        component="kubernetes",
        title="the server is currently unable to handle the request (503)",
        cause="The API server, or an extension API behind it, is not ready.",
        remedy=("kubectl get apiservices", "kubectl get --raw /readyz?verbose", "Run it again in a minute"),
        signs=(
            seen("status", code="503"),
            said("currently unable to handle the request", at=NAMED),
            said("(503)", r"\(503\)\s*Reason: ", CLASS),
        ),
        transient=True,
    ),
)
