"""What kubectl says about its arguments, files and waits. kubectl 1.34."""

from __future__ import annotations

from kai_lab_pipeline.lab.diagnosis.model import CLASS, EXACT, GENERIC, NAMED, SYMPTOM, Fault, Nature, said

FAULTS: tuple[Fault, ...] = (
    Fault(
        id="kubernetes.label-exists",
        component="kubectl",
        title="already has a value, and --overwrite is false",
        cause="The label {label} is set already, to {value}.",
        remedy=(
            "kubectl label --overwrite node {node} {label}=VALUE",
            "First find out who wrote it: kubectl get node {node} -o yaml --show-managed-fields",
        ),
        signs=(
            said("--overwrite is false", r"'(?P<label>[^']{1,120})' already has a value \((?P<value>[^)]{0,100})\)"),
        ),
    ),
    Fault(
        id="kubernetes.label-syntax",
        component="kubectl",
        title="invalid label value",
        cause="The value of label {label} has characters that labels cannot carry. For nvidia.com/gpu.memory it is "
        "the plain number of MiB, as 40960.",
        remedy=("kubectl label --overwrite node NODE nvidia.com/gpu.memory=40960",),
        signs=(said("invalid label value", r'"(?P<label>[^"=]{1,120})=', EXACT),),
    ),
    Fault(
        id="kubernetes.exec-killed",
        component="kubectl",
        title="command terminated with exit code 137",
        cause="What kubectl exec started in the container was killed: it used more memory than the container's limit, "
        "or the container was ended meanwhile.",
        remedy=(
            "kubectl describe pod -n {namespace} {pod}",
            "OOMKilled, or a last state that ended then: raise resources.limits.memory of that container",
            "A pod that was deleted or restarted meanwhile: run the command again in the one that is there now",
        ),
        signs=(said("command terminated with exit code 137", at=NAMED),),
        defaults={"namespace": "default"},
    ),
    Fault(
        id="kubernetes.manifest-unreadable",
        component="kubernetes",
        title="json parse error / the object provided is unrecognized",
        cause="What was sent is no complete Kubernetes object: cut off, or without kind and apiVersion.",
        remedy=("kubectl apply --dry-run=client -f FILE", "Look at the end of the file: was it cut off?"),
        signs=(
            said("the object provided is unrecognized"),
            said("couldn't get version/kind", at=CLASS),
            said("object 'kind' is missing"),
        ),
    ),
    Fault(
        id="kubernetes.manifest-yaml",
        component="kubernetes",
        title="error converting YAML to JSON",
        cause="The manifest is not YAML: {why}",
        remedy=(
            "Look at that line of the file: indentation, tabs, quotes, brackets",
            "kubectl apply --dry-run=client -f FILE",
        ),
        signs=(
            said("error converting yaml to json", r"(?P<why>yaml: .{1,200})", CLASS),
            said("error parsing ", r"error parsing \S+: .{0,200}(?P<why>yaml: .{1,200})", CLASS),
        ),
    ),
    Fault(
        id="kubernetes.manifest-missing",
        component="kubectl",
        title='the path "..." does not exist',
        cause="There is no file or address {path}.",
        remedy=(
            "ls -l {path}",
            "Upstream may have moved a manifest: pin it by tag, or use the lab's own under manifests/",
        ),
        signs=(
            said("the path ", r'the path "(?P<path>[^"]{1,300})" does not exist'),
            said("unable to read url", r'unable to read URL "(?P<path>[^"]{1,300})"'),
        ),
        links=("https://github.com/NVIDIA/k8s-test-infra/pull/724",),
    ),
    Fault(
        id="kubectl.nothing-matched",
        component="kubectl",
        title="error: no matching resources found",
        cause="kubectl wait looked before there was anything to wait for, or a selector matches nothing: a "
        "DaemonSet without a node that carries its label makes no pod.",
        remedy=(
            "kubectl get daemonsets,pods -A",
            "kubectl get nodes -L nvidia.com/gpu.present",
            "Wait again once the pods exist",
        ),
        signs=(said("no matching resources found"),),
        transient=True,
        links=("https://github.com/kubernetes-sigs/dranet/issues/273",),
    ),
    Fault(
        id="kubectl.empty-list",
        component="kubectl",
        title="array index out of bounds: index 0, length 0",
        cause="A jsonpath took the first of an empty list: the pods (the reservation pod, for one) do not exist at "
        "this moment.",
        remedy=(
            "kubectl get pods -n kai-resource-reservation -w",
            "Ask again in some seconds; between two attempts there is none",
        ),
        signs=(said("array index out of bounds", at=NAMED),),
        transient=True,
    ),
    Fault(
        id="kubectl.jsonpath",
        component="kubectl",
        title="error parsing jsonpath",
        cause="The jsonpath is not well formed.",
        remedy=("Quote it and close its brackets: -o jsonpath='{.items[0].metadata.name}'",),
        signs=(said("error parsing jsonpath"),),
    ),
    Fault(
        id="kubectl.wait-timeout",
        component="kubectl",
        title="error: timed out waiting for the condition",
        cause="{what} did not reach the condition in time.",
        remedy=("kubectl describe {what}", "kubectl get events -A --sort-by=.lastTimestamp | tail -20"),
        signs=(
            said("timed out waiting for the condition on", r"the condition on (?P<what>[\w./-]{1,200})", CLASS),
            said("timed out waiting for the condition", at=GENERIC),
        ),
        defaults={"what": "It"},
        transient=True,
    ),
    Fault(
        id="kubectl.flag",
        component="command line",
        title="error: unknown flag",
        cause="This version of the tool does not know the option {flag}. helm 4 dropped 'list -a': it lists all "
        "states by itself.",
        remedy=(
            "kubectl version --client",
            "helm version",
            "kind version",
            "Use helm 3.14 or newer, or helm 4, with the options of that major",
        ),
        signs=(
            said("unknown flag:", r"unknown flag: (?P<flag>\S{1,60})"),
            said("unknown shorthand flag", r"unknown shorthand flag: '(?P<flag>[^']{1,10})'"),
            said("unknown command", r'unknown command "(?P<flag>[^"]{1,60})"'),
        ),
    ),
    Fault(
        id="kubectl.exec",
        component="kubectl",
        title="unable to upgrade connection: container not found",
        cause="There is no running container to execute in.",
        remedy=("kubectl get pods -n {namespace}", "kubectl logs -n {namespace} {pod} --previous"),
        signs=(
            said("unable to upgrade connection"),
            said("cannot exec into a container in a completed pod"),
        ),
        defaults={"namespace": "default"},
    ),
    Fault(
        id="kubectl.logs-waiting",
        component="kubectl",
        title='container "..." in pod "..." is waiting to start',
        cause="Container {container} of pod {pod} has no log yet: it waits with {reason}.",
        remedy=("kubectl describe pod {pod}", "Ask again in some seconds"),
        signs=(
            said(
                "is waiting to start",
                r'container "(?P<container>[^"]{1,63})" in pod "(?P<pod>[^"]{1,253})" is waiting to start: '
                r"(?P<reason>.{1,100})",
                SYMPTOM + 10,
            ),
            said(
                "is not available",
                r'container "(?P<container>[^"]{1,63})" in pod "(?P<pod>[^"]{1,253})" is (?P<reason>not available)',
                SYMPTOM + 10,
            ),
            said("unable to retrieve container logs", at=SYMPTOM + 10),
        ),
        transient=True,
        defaults={"reason": "no reason given", "container": "", "pod": ""},
    ),
    Fault(
        id="kubectl.no-previous-log",
        component="kubectl",
        title="previous terminated container ... not found",
        cause="Container {container} of pod {pod} has not ended before, so it has no previous log.",
        remedy=("kubectl logs {pod} -c {container}",),
        signs=(
            said(
                "previous terminated container",
                r'container "(?P<container>[^"]{1,63})" in pod "(?P<pod>[^"]{1,253})" not found',
                EXACT,
            ),
        ),
    ),
    Fault(
        id="kubernetes.last-applied-missing",
        component="kubectl",
        title="Warning: resource ... is missing the kubectl.kubernetes.io/last-applied-configuration annotation",
        cause="The object was made by helm and is now applied over: the lab takes over the chart's default-queue. "
        "That is meant.",
        remedy=("Nothing to do",),
        signs=(said("is missing the kubectl.kubernetes.io/last-applied-configuration", at=NAMED),),
        nature=Nature.HARMLESS,
    ),
)
