"""What the API server refuses, and what kubectl and the Python client make of it. Kubernetes 1.34, client 34 and 35."""

from __future__ import annotations

from kai_lab_pipeline.lab.diagnosis.model import CLASS, EXACT, NAMED, SYMPTOM, Fault, said, seen

PYTHON = "https://github.com/kubernetes-client/python"

FAULTS: tuple[Fault, ...] = (
    Fault(
        id="kubernetes.namespace-terminating",
        component="kubernetes",
        title="unable to create new content in namespace ... because it is being terminated",
        cause="The namespace {namespace} is being deleted; nothing new is let in until it is gone.",
        remedy=(
            "kubectl get namespace {namespace} -o yaml",
            "kubectl api-resources --verbs=list --namespaced -o name | xargs -n1 kubectl get -n {namespace} "
            "--ignore-not-found",
            "Wait until it is gone, then run it again",
        ),
        signs=(
            seen(
                "status", cause="NamespaceTerminating", pattern=r"in namespace (?P<namespace>[a-z0-9-]{1,63})", at=EXACT
            ),
            said("because it is being terminated", r"in namespace (?P<namespace>[a-z0-9-]{1,63})", EXACT),
            said("object is being deleted", r'namespaces "(?P<namespace>[^"]{1,63})" already exists', EXACT),
        ),
        transient=True,
    ),
    Fault(
        id="kubernetes.terminating",
        component="kubernetes",
        title="stuck in Terminating: deletionTimestamp is set and finalizers are not done",
        cause="{object_kind} {name} is being deleted and waits for its finalizers, or for its pod to end. A "
        "sleeping busybox ignores the first signal and takes 30 s.",
        remedy=(
            "kubectl get {object_kind} {name} -n {namespace} -o jsonpath='{.metadata.finalizers}'",
            "Bring back the controller that owns the finalizer, or, when it is gone for good, remove the finalizer",
        ),
        signs=(
            seen("deleting", finalizers="yes", at=NAMED),
            seen("deleting", object_kind="Namespace", at=NAMED),
            said(
                "is still there",
                r"(?P<object_kind>\w{1,40})/(?P<name>\S{1,200}) is still there [0-9.]+ s after it was deleted",
                NAMED,
            ),
            said(
                "resource scheduled for deletion",
                r"resource (?P<object_kind>\w{1,40})/(?P<namespace>[^/\s]{1,63})/(?P<name>\S{1,200}) still exists",
                NAMED,
            ),
            said("terminating", r"^\S+\s+(?:\d+/\d+\s+)?Terminating\b", SYMPTOM),
        ),
        transient=True,
        defaults={"object_kind": "the object", "namespace": "default"},
    ),
    Fault(
        id="kubernetes.quota",
        component="kubernetes",
        title="exceeded quota",
        cause="The ResourceQuota {quota} of the namespace does not allow it.",
        remedy=("kubectl get resourcequota -A", "Raise or remove the ResourceQuota {quota}"),
        signs=(
            said("exceeded quota:", r"exceeded quota: (?P<quota>[a-z0-9.-]{1,200})", EXACT),
            said("failed quota:", r"failed quota: (?P<quota>[a-z0-9.-]{1,200})", EXACT),
        ),
    ),
    Fault(
        id="kubernetes.forbidden",
        component="kubernetes",
        title='... is forbidden: User "..." cannot ... resource "..."',
        cause="{user} has not the right to {verb} {resource}. The lab's charts make cluster roles, CRDs and "
        "webhooks: they need cluster-admin.",
        remedy=(
            "kubectl auth can-i {verb} {resource} --as {user}",
            "kubectl auth whoami",
            "Use a context with cluster-admin (KAI_LAB_CONTEXT)",
        ),
        signs=(
            seen(
                "status",
                pattern=r'User "(?P<user>[^"]{1,200})" cannot (?P<verb>\w{1,20}) resource "(?P<resource>[^"]{1,100})"',
                reason="Forbidden",
                at=EXACT,
            ),
            said(
                "is forbidden: user",
                r'User "(?P<user>[^"]{1,200})" cannot (?P<verb>\w{1,20}) resource "(?P<resource>[^"]{1,100})"',
                EXACT,
            ),
        ),
    ),
    Fault(
        id="kubernetes.pod-security",
        component="kubernetes",
        title="violates PodSecurity",
        cause="The namespace enforces a Pod Security level that does not allow privileged pods or hostPath; "
        "nvml-mock and the isolator need both.",
        remedy=(
            "kubectl get namespace -L pod-security.kubernetes.io/enforce",
            "kubectl label namespace {namespace} pod-security.kubernetes.io/enforce=privileged --overwrite",
        ),
        signs=(said("violates podsecurity", at=EXACT),),
        defaults={"namespace": "default"},
        explains=("pod.failed-create",),
    ),
    Fault(
        id="kubernetes.kind-unknown",
        component="kubernetes",
        title='no matches for kind "..." in version "...": ensure CRDs are installed first',
        cause="The API server does not know the kind {kind} of {api_version} (yet): its CRD comes with a chart "
        "that is not installed, or was made a moment ago.",
        remedy=(
            "kubectl get crds",
            "kubectl api-resources | grep -i {kind}",
            "Install the chart that brings the CRD, then run it again",
        ),
        signs=(
            said(
                "no matches for kind",
                r'no matches for kind "(?P<kind>[^"]{1,80})" in version "(?P<api_version>[^"]{1,120})"',
            ),
            said("ensure crds are installed first", at=CLASS),
        ),
        transient=True,
        defaults={"kind": "named", "api_version": "that group"},
    ),
    Fault(
        id="kubernetes.resource-unknown",
        component="kubernetes",
        title="the server doesn't have a resource type",
        cause="The API server knows no resource {resource}: misspelt, or its CRD is not installed.",
        remedy=("kubectl api-resources",),
        signs=(
            said("doesn't have a resource type", r'resource type "(?P<resource>[^"]{1,100})"'),
            said("404 page not found", at=CLASS),
            said("could not find the requested resource", at=CLASS),
        ),
        defaults={"resource": "of that name"},
    ),
    Fault(
        id="kubernetes.crd-changed",
        component="kubernetes",
        title="CRDs are not upgraded by helm / unknown field",
        cause="The API server refuses a field: {field}. It is misspelt, or the CRD of an older version is still "
        "there, for helm never upgrades CRDs.",
        remedy=(
            "kubectl explain KIND.spec",
            "kubectl get crds",
            "helm show crds CHART --version VERSION | kubectl apply --server-side -f -",
        ),
        signs=(said("unknown field", r'unknown field "(?P<field>[^"]{1,200})"'),),
        links=("https://github.com/kai-scheduler/KAI-Scheduler/issues/1124",),
    ),
    Fault(
        id="kubernetes.immutable-pod",
        component="kubernetes",
        title="pod updates may not change fields other than spec.containers[*].image ...",
        cause="A pod's spec cannot be changed once it is there; only a new pod can have other values.",
        remedy=("kubectl delete pod {name} -n {namespace}", "kubectl apply -f FILE"),
        signs=(
            said("pod updates may not change fields other than", r'(?:pod "(?P<name>[^"]{1,200})" is invalid)?', EXACT),
            said("pod updates may not add or remove containers", at=EXACT),
        ),
        defaults={"namespace": "default"},
        links=("https://github.com/NVIDIA/mig-parted/pull/277",),
    ),
    Fault(
        id="kubernetes.immutable",
        component="kubernetes",
        title="field is immutable",
        cause="A field cannot be changed on an object that exists; it has to be made anew.",
        remedy=("kubectl replace --force -f FILE", "or helm uninstall RELEASE -n NAMESPACE and install it again"),
        signs=(said("field is immutable", at=NAMED + 5),),
    ),
    Fault(
        id="kubernetes.conflict",
        component="kubernetes",
        title="Operation cannot be fulfilled: the object has been modified",
        cause="Somebody else wrote the object between reading and writing it.",
        remedy=("Do it again: read the object anew, then write", "Use a patch in place of a replace"),
        signs=(
            seen("status", code="409", reason="Conflict"),
            said("the object has been modified", at=NAMED),
            said("(409)", r"\(409\)\s*Reason: Conflict", CLASS),
        ),
        transient=True,
        links=("https://github.com/kubernetes/client-go/issues/414",),
    ),
    Fault(
        id="kubernetes.apply-conflict",
        component="kubernetes",
        title="Apply failed with 1 conflict: conflict with ...",
        cause="The field manager {manager} owns fields that this apply wants to set otherwise.",
        remedy=(
            "kubectl get OBJECT -o yaml --show-managed-fields",
            "kubectl apply --server-side --force-conflicts -f FILE",
        ),
        signs=(
            said("conflict with ", r'conflicts? with "(?P<manager>[^"]{1,200})"', NAMED + 5),
            said("apply failed with", r"apply failed with \d+ conflicts?", NAMED),
        ),
        defaults={"manager": "of somebody else"},
    ),
    Fault(
        id="kubernetes.exists",
        component="kubernetes",
        title='... "..." already exists',
        cause="{resource} {name} is there already: made before, or by somebody else.",
        remedy=("kubectl get {resource} {name} -o yaml", "Use apply in place of create, or delete it first"),
        signs=(
            seen("status", reason="AlreadyExists"),
            seen(
                "status",
                " already exists",
                r'\b(?P<resource>[a-z][\w.]{1,100}) "(?P<name>[^"]{1,200})" already exists',
                reason="AlreadyExists",
                at=NAMED + 1,
            ),
            said("(alreadyexists)", r'(?P<resource>[\w.]{1,100}) "(?P<name>[^"]{1,200})" already exists', NAMED),
            said("already exists", r'\b(?P<resource>[a-z][\w.]{1,100}) "(?P<name>[^"]{1,200})" already exists', CLASS),
        ),
        defaults={"resource": "The object", "name": ""},
    ),
    Fault(
        id="kubernetes.namespace-missing",
        component="kubernetes",
        title='namespaces "..." not found',
        cause="There is no namespace {namespace}.",
        remedy=("kubectl create namespace {namespace}", "or let helm make it: --create-namespace"),
        signs=(said("not found", r'namespaces "(?P<namespace>[^"]{1,63})" not found', EXACT),),
    ),
    Fault(
        id="kubernetes.not-found",
        component="kubernetes",
        title="Error from server (NotFound)",
        cause="There is no {resource} {name}.",
        remedy=("kubectl get {resource} -A", "Check name, namespace and context: kubectl config current-context"),
        signs=(
            seen("status", code="404", at=CLASS),
            seen(
                "status",
                " not found",
                r'(?P<resource>[\w.]{1,100}) "(?P<name>[^"]{1,200})" not found',
                code="404",
                at=CLASS + 1,
            ),
            said("(notfound)", r'(?P<resource>[\w.]{1,100}) "(?P<name>[^"]{1,200})" not found', CLASS),
            said(
                "not found in namespace",
                r'(?P<resource>[\w.]{1,100}) "(?P<name>[^"]{1,200})" not found in namespace',
                CLASS,
            ),
            said("(404)", r"\(404\)\s*Reason: Not Found", CLASS),
        ),
        defaults={"resource": "object", "name": "of that name"},
    ),
    Fault(
        id="kubernetes.invalid",
        component="kubernetes",
        title="... is invalid: ...: Invalid value",
        cause="The API server does not accept {field}: {why}",
        remedy=("Correct the field {field} in the manifest", "kubectl apply --dry-run=server -f FILE"),
        signs=(
            seen(
                "status",
                code="422",
                pattern=r"is invalid: (?:(?P<field>[\w.][\w.\[\]/-]{0,119}): )?(?P<why>.{1,200})",
                at=CLASS,
            ),
            said("invalid value:", r"(?P<field>[\w.\[\]/-]{1,120}): (?P<why>Invalid value: .{1,200})", CLASS),
            said("required value:", r"(?P<field>[\w.\[\]/-]{1,120}): (?P<why>Required value: .{1,200})", CLASS),
            said("required value", r"(?P<field>[\w.\[\]/-]{1,120}): (?P<why>Required value.{0,200})", CLASS),
            said("invalid label value", r'"(?P<field>[^"=]{1,120})=(?P<why>[^"]{0,100})"', NAMED),
            said("(422)", r"\(422\)\s*Reason: Unprocessable Entity", CLASS),
        ),
        defaults={"field": "a field", "why": "see the evidence"},
    ),
    Fault(
        id="kubernetes.expired",
        component="kubernetes client",
        title="too old resource version / The resourceVersion for the provided list is too old (410 Gone)",
        cause="A watch or list went on from a version that the API server no longer keeps. The right answer is to "
        "list anew; a client that does not, hangs or ends here.",
        remedy=("Run it again: the lab lists anew by itself", "In own code: on 410 list again and watch from there"),
        signs=(
            seen("status", code="410"),
            said("too old resource version", at=NAMED),
            said("for the provided list is too old", at=NAMED),
            said("continue parameter is too old", at=NAMED),
            said("(410)", r"\(410\)\s*Reason", NAMED),
        ),
        transient=True,
        links=(
            f"{PYTHON}/issues/2223",
            f"{PYTHON}/issues/1148",
            f"{PYTHON}/pull/2527",
            "https://github.com/apache/airflow/pull/30425",
        ),
    ),
    Fault(
        id="kubernetes.version-from-elsewhere",
        component="kubernetes client",
        title="Too large resource version",
        cause="The version asked for is newer than this API server's: it comes from another cluster, or the "
        "cluster was made anew.",
        remedy=("Run it again: the lab lists anew by itself", "kubectl config current-context"),
        signs=(
            seen("status", cause="ResourceVersionTooLarge", at=EXACT),
            said("too large resource version", at=NAMED),
        ),
        transient=True,
    ),
    Fault(
        id="kubernetes.timeout",
        component="kubernetes",
        title="the server was unable to complete the request in time (504)",
        cause="The API server or its storage was too slow.",
        remedy=("kubectl get --raw /readyz?verbose", "Run it again in a minute"),
        signs=(
            seen("status", code="504", at=CLASS),
            said("request did not complete within", at=NAMED),
            said("read timed out", at=CLASS),
            said("(504)", r"\(504\)\s*Reason: ", CLASS),
        ),
        transient=True,
    ),
    Fault(
        id="kubernetes.bad-request",
        component="kubernetes",
        title="Error from server (BadRequest)",
        cause="The API server does not understand the request; what it objects to stands in the evidence.",
        remedy=("kubectl apply --dry-run=server -f FILE",),
        signs=(
            seen("status", code="400", at=SYMPTOM),
            said("error from server (badrequest)", at=SYMPTOM),
        ),
    ),
    Fault(
        id="kubernetes.rejected",
        component="kubernetes",
        title="... is forbidden: ...",
        cause="An admission rule of the API server does not allow it; which one stands in the evidence.",
        remedy=("Correct the object as the text says", "kubectl apply --dry-run=server -f FILE"),
        signs=(
            seen("status", code="403", at=SYMPTOM),
            said("error from server (forbidden)", at=SYMPTOM),
            said("(403)", r"\(403\)\s*Reason: Forbidden", SYMPTOM),
        ),
    ),
    Fault(
        id="kubernetes.internal-error",
        component="kubernetes",
        title="Internal error occurred (500)",
        cause="Something behind the API server failed: a webhook, an extension API, or its storage.",
        remedy=(
            "kubectl get --raw /readyz?verbose",
            "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations",
        ),
        signs=(
            seen("status", code="500", at=SYMPTOM),
            said("internal error occurred", at=SYMPTOM),
            said("(500)", r"\(500\)\s*Reason: ", SYMPTOM),
        ),
        transient=True,
    ),
)
