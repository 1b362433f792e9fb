"""Charts, chart values and arguments that helm refuses, in the words of helm 3.22 and 4.3 and of the lab's charts."""

from __future__ import annotations

from kai_lab_pipeline.lab.diagnosis.knowledge.commands import KAI_UPGRADE
from kai_lab_pipeline.lab.diagnosis.model import CLASS, EXACT, NAMED, Fault, Nature, said

FAULTS: tuple[Fault, ...] = (
    Fault(
        id="chart.schema",
        component="chart values",
        title="values don't meet the specifications of the schema(s) in the following chart(s)",
        cause="The chart does not take the value at {field}: {why}",
        remedy=(
            'Correct the value in lab.toml (or --set / --set-string: 8 is a number, "8" is a string)',
            "helm show values CHART --version VERSION",
        ),
        signs=(
            said("- at '/", r"- at '(?P<field>/[^']{1,200})': (?P<why>.{1,200})", NAMED),
            said("meet the specifications of the schema", at=NAMED),
        ),
        defaults={"field": "that the next lines name", "why": "see the evidence"},
        versions="nvml-mock 0.3.0 and others with a schema",
    ),
    Fault(
        id="chart.gpu-profile",
        component="nvml-mock",
        title='Unknown GPU profile "...": profiles/....yaml not found in chart',
        cause="nvml-mock knows no card {profile}. Profiles are named in lower case: {profiles}",
        remedy=("Take one of these for gpu.profile in lab.toml; the lab's is a100",),
        signs=(
            said(
                "unknown gpu profile",
                r'Unknown GPU profile "(?P<profile>[^"]{1,60})"(?:.{0,200}Available profiles: (?P<profiles>[a-z0-9, '
                r"]{1,200}))?",
                EXACT,
            ),
        ),
        defaults={"profiles": "a100, b200, gb200, gb300, h100, l40s, t4"},
        versions="nvml-mock 0.3.0",
    ),
    Fault(
        id="chart.value-type",
        component="KAI Scheduler",
        title="failed to create typed patch object (/kai-config; kai.scheduler/v1, Kind=Config): ...: expected "
        "boolean, got &{yes}",
        cause="The chart value behind {field} has the wrong type: {value} where a {wanted} belongs. helm passes "
        "words such as yes or enabled on as strings, and KAI's hook is the first to object.",
        remedy=(
            "Write true or false: --set global.gpuSharing=true --set binder.plugins.hamicore.enabled=true",
            KAI_UPGRADE,
        ),
        signs=(
            said(
                "failed to create typed patch object",
                r"(?P<field>\.spec[\w.]{1,200}): expected (?P<wanted>\w{1,40}), got &\{(?P<value>[^}]{0,100})\}",
                EXACT,
            ),
            said("failed to create typed patch object", at=NAMED),
        ),
        versions="KAI v0.16 and v0.17",
        explains=("helm.hook-failed", "workload.job-failed", "kubectl.wait-timeout", "helm.wait-timeout"),
        explains_all=(
            "helm.hook-failed",
            "helm.release-failed",
            "kai.components-missing",
            "lab.chart-version",
            "pod.error-exit",
            "pod.crash-loop",
        ),
        defaults={"field": "of the Config", "value": "another", "wanted": "different type"},
    ),
    Fault(
        id="chart.values-yaml",
        component="chart values",
        title="failed to parse values.yaml: error converting YAML to JSON",
        cause="The values file {file} is not a YAML mapping: {why}",
        remedy=("Look at that line: indentation, tabs (YAML takes none), brackets and quotes",),
        signs=(
            said(
                "failed to parse ",
                r"failed to parse (?P<file>\S{1,300}): (?P<why>(?:error|cannot) (?:converting|unmarshal).{1,200})",
                NAMED,
            ),
        ),
    ),
    Fault(
        id="chart.values-missing",
        component="chart values",
        title="open .../values.yaml: no such file or directory",
        cause="There is no values file {file}.",
        remedy=("ls -l {file}",),
        signs=(said("no such file or directory", r"open (?P<file>\S{1,300}\.ya?ml): no such file", CLASS),),
    ),
    Fault(
        id="chart.set-syntax",
        component="chart values",
        title="failed parsing --set data",
        cause="A --set argument is not well formed: {why}",
        remedy=("Quote it for the shell: --set 'list[0]=x'; a comma in a value is written \\,",),
        signs=(said("failed parsing --set", r"failed parsing --set\S* data: (?P<why>.{1,200})", NAMED),),
    ),
    Fault(
        id="chart.not-a-chart",
        component="helm",
        title='path "..." not found / Chart.yaml file is missing / does not appear to be a gzipped archive',
        cause="What was named is no chart.",
        remedy=("Name a chart folder, a chart archive (.tgz) or an oci:// reference with its version in lab.toml",),
        signs=(
            said("not found", r'path "(?P<path>[^"]{1,300})" not found', NAMED),
            said("chart.yaml file is missing", at=NAMED),
            said("unable to detect chart at", at=EXACT),
            said("does not appear to be a gzipped archive", at=NAMED),
            said("media type is not", at=CLASS),
            said("no chart is in it", at=CLASS),
        ),
    ),
    Fault(
        id="chart.repo-unknown",
        component="helm",
        title="repo ... not found",
        cause="helm knows no repository {repo}. The lab's charts come from OCI registries and need none.",
        remedy=(
            "helm repo list",
            "Write oci://ghcr.io/nvidia/k8s-test-infra/chart/nvml-mock in place of repository/chart",
        ),
        signs=(said("repo ", r"\brepo (?P<repo>[\w.-]{1,60}) not found", NAMED),),
    ),
    Fault(
        id="chart.kube-version",
        component="helm",
        title="chart requires kubeVersion: ... which is incompatible with Kubernetes ...",
        cause="The chart wants Kubernetes {wanted}, and the cluster has {found}.",
        remedy=("kubectl version", "Take a newer node image (kind.node_image), or an older chart"),
        signs=(
            said(
                "chart requires kubeversion",
                r"kubeVersion: (?P<wanted>.{1,60}?) which is incompatible with Kubernetes (?P<found>\S{1,40})",
                EXACT,
            ),
        ),
        elsewhere=(
            "kubectl version",
            "Take a cluster with a newer Kubernetes, or an older chart",
        ),
    ),
    Fault(
        id="chart.release-name",
        component="helm",
        title="invalid release name, must match regex",
        cause="helm does not take the release name {release}: lower-case letters, digits and '-', 53 at most.",
        remedy=("Use the lab's names: nvml-mock, kai-scheduler, kai-resource-isolator",),
        signs=(
            said("invalid release name", r'release name \\?"(?P<release>[^"\\]{1,100})\\?"', EXACT),
            said("must either provide a name or specify --generate-name", at=NAMED),
            said("requires at least 1 argument", at=NAMED),
        ),
        defaults={"release": "given (or none was given)"},
    ),
    Fault(
        id="chart.value-ignored",
        component="chart values",
        title="coalesce.go: warning: destination for ... is a table. Ignoring non-table value",
        cause="A value was set across another one of a different shape, and helm ignores one of the two.",
        remedy=("helm get values RELEASE -n NAMESPACE --all", "helm show values CHART --version VERSION"),
        signs=(said("ignoring non-table value", at=CLASS - 10),),
        nature=Nature.HARMLESS,
    ),
    Fault(
        id="chart.format-warning",
        component="helm",
        title='Warning: unrecognized format "int64" / spec.SessionAffinity is ignored for headless services',
        cause="The API server comments on KAI's CRDs and the mock's Service; it takes them all the same.",
        remedy=("Nothing to do",),
        signs=(
            said("warning: unrecognized format", at=CLASS - 10),
            said("sessionaffinity is ignored for headless services", at=CLASS - 10),
            said("flag --atomic has been deprecated", at=CLASS - 10),
        ),
        nature=Nature.HARMLESS,
    ),
    Fault(
        id="chart.template",
        component="helm",
        title="execution error at (...): / template: ... error calling include",
        cause="A template of the chart failed: {why}",
        remedy=("helm template CHART --version VERSION --debug", "Correct the value that the line names"),
        signs=(
            said("execution error at", r"execution error at \([^)]{1,200}\): (?P<why>.{1,250})", CLASS),
            said("error calling ", r"(?P<why>error calling \w{1,30}: .{1,200})", CLASS),
        ),
    ),
)
