"""Releases that helm cannot install, upgrade, wait for or heal, in the words of helm 3.22 and 4.3."""

from __future__ import annotations

from kai_lab_pipeline.lab.diagnosis.knowledge.commands import ALL_VALUES, HEAL, HELM_LIST, KAI_UPGRADE, RELEASE_UPGRADE
from kai_lab_pipeline.lab.diagnosis.model import CLASS, EXACT, GENERIC, NAMED, SYMPTOM, Fault, said, seen

_RELEASE = {"release": "RELEASE", "namespace": "NAMESPACE"}
HELM = "https://github.com/helm/helm/issues"

FAULTS: tuple[Fault, ...] = (
    Fault(
        id="helm.name-in-use",
        component="helm",
        title="cannot re-use a name that is still in use / cannot reuse a name that is still in use",
        cause="A release of that name is there already. After a failed or interrupted install this hides the "
        "first, real error: that stands in the release's history.",
        remedy=(
            *HELM_LIST,
            "helm history {release} -n {namespace}",
            RELEASE_UPGRADE,
            ALL_VALUES,
            "or helm uninstall {release} -n {namespace}",
        ),
        signs=(
            said("cannot re-use a name that is still in use", at=EXACT),
            said("cannot reuse a name that is still in use", at=EXACT),
        ),
        versions="helm 3 (re-use) and 4 (reuse)",
        links=(f"{HELM}/10323", f"{HELM}/8987", "https://github.com/koderover/zadig/pull/808"),
        defaults=_RELEASE,
    ),
    Fault(
        id="helm.pending",
        component="helm",
        title="another operation (install/upgrade/rollback) is in progress",
        cause="The release is in a pending state: another helm works on it, or one was killed and left it so.",
        remedy=(
            "pgrep -a helm",
            *HELM_LIST,
            "helm uninstall {release} -n {namespace}",
            "or, for pending-upgrade and pending-rollback, go back to a revision by number:",
            "helm rollback {release} REVISION -n {namespace}",
            "If no other helm runs, the lab heals it by itself:",
            HEAL,
        ),
        signs=(
            said("another operation (install/upgrade/rollback) is in progress", at=EXACT),
            seen("helm", status=("pending-install", "pending-upgrade", "pending-rollback"), at=EXACT),
            said("pending-install", r"\s(?:pending-install)\b", NAMED),
            said("pending-upgrade", r"\s(?:pending-upgrade)\b", NAMED),
            said("pending-rollback", r"\s(?:pending-rollback)\b", NAMED),
        ),
        links=(
            f"{HELM}/10323",
            f"{HELM}/8987",
            "https://github.com/agones-dev/agones/issues/2356",
            "https://github.com/OctopusDeploy/Calamari/pull/2024",
        ),
        defaults=_RELEASE,
        explains_all=("lab.chart-version",),
    ),
    Fault(
        id="helm.no-deployed-release",
        component="helm",
        title='UPGRADE FAILED: "..." has no deployed releases',
        cause="The release {release} never became deployed, or is half uninstalled, so there is nothing to upgrade "
        "from.",
        remedy=(*HELM_LIST, "helm uninstall {release} -n {namespace}", "kai-lab run"),
        signs=(said("has no deployed releases", r'"(?P<release>[^"]{1,53})" has no deployed releases', EXACT),),
        links=(f"{HELM}/8380",),
        defaults=_RELEASE,
    ),
    Fault(
        id="helm.uninstalling",
        component="helm",
        title="status uninstalling: Deletion in progress (or silently failed)",
        cause="An uninstall was cut off: the release {release} is neither there nor gone.",
        remedy=("helm uninstall {release} -n {namespace}", *HELM_LIST),
        signs=(
            seen("helm", status="uninstalling", at=EXACT),
            said("deletion in progress (or silently failed)", at=NAMED),
            said("uninstalling", r"\suninstalling\s", CLASS),
        ),
        defaults=_RELEASE,
        explains_all=("lab.chart-version",),
    ),
    Fault(
        id="helm.release-failed",
        component="helm",
        title="release status: failed",
        cause="The last operation on release {release} failed: {why}",
        remedy=(
            "helm history {release} -n {namespace}",
            RELEASE_UPGRADE,
            ALL_VALUES,
        ),
        signs=(
            seen("helm", pattern=r"(?P<why>.{1,300})", status="failed", at=CLASS),
            seen("helm", status="failed", at=CLASS - 1),
            seen(
                "check",
                " failed",
                r"(?P<why>.{1,250})",
                check=(
                    "nvml_mock_release.release_deployed",
                    "kai_release.release_deployed",
                    "isolator_release.release_deployed",
                ),
                at=CLASS,
            ),
            said(
                "failed",
                r"^(?P<release>[a-z0-9.-]{1,53})\s+(?P<namespace>[a-z0-9-]{1,63})\s+\d+\s+\d{4}-\S+ .{0,60}\sfailed\s",
                CLASS,
            ),
            said("status: failed", r"^STATUS: failed", CLASS),
        ),
        defaults={**_RELEASE, "why": "see its history"},
        links=("https://github.com/kai-scheduler/KAI-Scheduler/issues/1042",),
        explains_all=("lab.chart-version",),
    ),
    Fault(
        id="helm.release-missing",
        component="helm",
        title="release: not found",
        cause="There is no release {release} in this namespace.",
        remedy=(*HELM_LIST, "Check -n: releases belong to a namespace"),
        signs=(
            said("release: not found", r"(?:Release not loaded: (?P<release>\S{1,53}): )?release: not found"),
            said("release not loaded", r"Release not loaded: (?P<release>[^\s:]{1,53})"),
        ),
        defaults={"release": "of that name"},
    ),
    Fault(
        id="helm.revision-missing",
        component="helm",
        title="release has no 0 version",
        cause="The release has no revision {revision} to go back to. After a killed install or upgrade helm picks "
        "0 by itself: name the revision.",
        remedy=("helm history {release} -n {namespace}", "helm rollback {release} REVISION -n {namespace}"),
        signs=(said("release has no ", r"release has no (?P<revision>\d{1,6}) version", EXACT),),
        defaults=_RELEASE,
    ),
    Fault(
        id="helm.rollback-queues",
        component="helm",
        title='cannot patch "default-parent-queue" with kind Queue: metadata.resourceVersion: Invalid value: 0: '
        "must be specified for an update",
        cause="KAI's two default queues are in the chart's first revision only, so helm cannot go back to it: a "
        "rollback of kai-scheduler leaves a mix of an old operator and new components.",
        remedy=(
            KAI_UPGRADE,
            "kubectl get deployments -n kai-scheduler -o wide",
        ),
        signs=(
            said("cannot patch", r'cannot patch "default-(?:parent-)?queue" with kind Queue', EXACT),
            said("metadata.resourceversion: invalid value", at=NAMED),
        ),
        versions="KAI v0.16.8 to v0.17.0",
    ),
    Fault(
        id="helm.hook-failed",
        component="helm",
        title="failed post-install / pre-upgrade hooks failed: timed out waiting for the condition",
        cause="A {when} hook of the chart did not end in time. helm does not say why: that is in the log of the "
        "hook's Job. For KAI it is mostly a value of the wrong type (enabled=yes is a string), or the hook's image "
        "that is missing.",
        remedy=(
            "kubectl get jobs,pods -n {namespace}",
            "kubectl logs -n kai-scheduler job/kai-config-deployer",
            "Correct the value and upgrade in place",
            RELEASE_UPGRADE,
        ),
        signs=(
            said("pod=kai-config-deployer", at=NAMED + 5),
            said("hooks failed", r"(?P<when>(?:pre|post)-(?:install|upgrade|rollback|delete)) hooks failed", NAMED),
            said("failed pre-install", r"failed (?P<when>pre-install)", NAMED),
            said("failed post-install", r"failed (?P<when>post-install)", NAMED),
            said("failed post-upgrade", r"failed (?P<when>post-upgrade)", NAMED),
            said("failed pre-upgrade", r"failed (?P<when>pre-upgrade)", NAMED),
        ),
        explains=(
            "pod.crash-loop",
            "pod.error-exit",
            "kubectl.wait-timeout",
            "helm.wait-timeout",
            "helm.release-failed",
            "workload.job-failed",
            "helm.failed",
        ),
        defaults={**_RELEASE, "when": "helm"},
        explains_all=(
            "helm.release-failed",
            "kai.components-missing",
            "lab.chart-version",
        ),
    ),
    Fault(
        id="helm.shard-in-progress",
        component="helm",
        title="resource not ready, name: default, kind: SchedulingShard, status: InProgress",
        cause="helm 4 waits for a custom resource that the operator reconciles in its own time, and declares the "
        "release failed although KAI comes up. What counts is whether its deployments become Available.",
        remedy=(
            "kubectl get deployments -n kai-scheduler",
            "kubectl get schedulingshards -o yaml",
            KAI_UPGRADE,
        ),
        signs=(
            said(
                "schedulingshard",
                r"(?:SchedulingShard.{0,120}(?:InProgress|not ready)|not ready.{0,120}SchedulingShard)",
                EXACT,
            ),
        ),
        transient=True,
        versions="helm 4 with KAI",
        links=(
            "https://github.com/kai-scheduler/KAI-Scheduler/issues/1042",
            "https://github.com/NVIDIA/aicr/pull/169",
            f"{HELM}/32615",
            f"{HELM}/32066",
        ),
        explains=("helm.*", "kubectl.wait-timeout"),
    ),
    Fault(
        id="helm.uninstall-timeout",
        component="helm",
        title="uninstallation completed with 1 error(s): context deadline exceeded",
        cause="The release is uninstalled, and something of it was still being deleted when helm stopped waiting: "
        "a finalizer, or a pod that ignores its first signal.",
        remedy=("kubectl get all -n {namespace}", "kubectl get pods -A | grep Terminating", *HELM_LIST),
        signs=(said("uninstallation completed with", at=EXACT),),
        transient=True,
        explains=("helm.wait-timeout", "kubernetes.terminating"),
        defaults=_RELEASE,
    ),
    Fault(
        id="helm.wait-timeout",
        component="helm",
        title="INSTALLATION FAILED: context deadline exceeded / resource ... not ready. status: InProgress",
        cause="helm gave up waiting for {object}; what it made stays and may still come up. helm 3 names no "
        "object, helm 4 does.",
        remedy=(
            "kubectl get pods -A -o wide",
            "kubectl describe {object} -n {namespace}",
            "Once it is ready, turn the release to deployed with the next command",
            RELEASE_UPGRADE,
        ),
        signs=(
            said(
                "not ready. status: inprogress",
                r"resource (?P<object_kind>\w{1,40})/(?P<namespace>[^/\s]{1,63})/(?P<object>\S{1,200}) not ready",
                NAMED + 1,
            ),
            said("resource not ready, name:", r"name: (?P<object>[^,\s]{1,200})", NAMED),
            said("failed: context deadline exceeded", at=NAMED),
            said("context deadline exceeded", r"^\s*(?:Error: )?context deadline exceeded", CLASS),
            said("being set: context deadline exceeded", at=NAMED),
        ),
        transient=True,
        defaults={**_RELEASE, "object": "the workloads"},
        explains=("kubectl.wait-timeout",),
    ),
    Fault(
        id="helm.cancelled",
        component="helm",
        title="INSTALLATION FAILED: context canceled / Release ... has been cancelled",
        cause="helm was told to stop before it was done; the release is left failed.",
        remedy=(HEAL, "or helm uninstall {release} -n {namespace}"),
        signs=(
            said("context canceled", at=CLASS),
            said("has been cancelled", r"Release (?P<release>\S{1,53}) has been cancelled", NAMED),
        ),
        transient=True,
        defaults=_RELEASE,
    ),
    Fault(
        id="helm.killed",
        component="helm",
        title="Killed (exit code 137)",
        cause="The command was killed hard: by a person, by a supervisor, or by the kernel for want of memory. A "
        "helm that dies so leaves its release pending.",
        remedy=(*HELM_LIST, "dmesg | grep -i 'killed process'", HEAL),
        signs=(
            said("killed", r"\bKilled\s{2,}\S", NAMED),
            said("signal: killed", at=NAMED),
            said("exit code 137", r"\bhelm\b.{0,300}exit code 137", SYMPTOM),
        ),
        transient=True,
    ),
    Fault(
        id="helm.owned-by-other",
        component="helm",
        title="... exists and cannot be imported into the current release: invalid ownership metadata",
        cause="{object_kind} {object} is there already and does not belong to this release: another release or "
        "namespace has it, or it was applied by hand.",
        remedy=(
            *HELM_LIST,
            "kubectl get {object_kind} {object} -o yaml",
            "kubectl delete {object_kind} {object}",
            "or take the release and namespace that own it",
        ),
        signs=(
            said(
                "cannot be imported into the current release",
                r'(?P<object_kind>\w{1,60}) "(?P<object>[^"]{1,200})" in namespace "[^"]{0,63}" exists and cannot',
                NAMED,
            ),
        ),
    ),
    Fault(
        id="helm.queue-before-kai",
        component="helm",
        title='Queue "default-queue" in namespace "" exists and cannot be imported into the current release',
        cause="The Queue {object} was applied before KAI was installed (or stayed from an earlier KAI), and the "
        "chart brings it itself.",
        remedy=("kubectl delete queue {object}", "Install KAI first, then apply the lab's queues over the chart's"),
        signs=(
            said(
                "cannot be imported into the current release",
                r'Queue "(?P<object>[^"]{1,200})" in namespace "[^"]{0,63}" exists and cannot',
                EXACT,
            ),
        ),
        versions="KAI v0.16 and newer",
        links=("https://github.com/kai-scheduler/KAI-Scheduler/issues/751",),
    ),
    Fault(
        id="helm.resources-kept",
        component="helm",
        title="These resources were kept due to the resource policy",
        cause="helm uninstall leaves some objects of KAI on purpose (queues, SchedulingShard, the reservation "
        "namespace), and CRDs always.",
        remedy=(
            "kubectl delete queues --all",
            "kubectl delete schedulingshard default",
            "kubectl delete namespace kai-resource-reservation",
            "or delete the whole cluster: kai-lab down",
        ),
        signs=(said("these resources were kept due to the resource policy"),),
        links=(
            "https://github.com/kai-scheduler/KAI-Scheduler/issues/661",
            "https://github.com/kai-scheduler/KAI-Scheduler/issues/1618",
        ),
    ),
    Fault(
        id="helm.crd-rights",
        component="helm",
        title="failed to install CRD crds/...",
        cause="The chart's CRDs could not be made; the reason stands in the evidence.",
        remedy=("kubectl auth can-i create customresourcedefinitions", "Use a context with cluster-admin"),
        signs=(said("failed to install crd", at=CLASS),),
    ),
    Fault(
        id="helm.object-missing",
        component="helm",
        title="create: failed to create: namespaces ... not found",
        cause="helm does not make the namespace {namespace} by itself.",
        remedy=(
            "kubectl create namespace {namespace}",
            "or let helm make it: --create-namespace",
        ),
        signs=(
            said(
                "create: failed to create: namespaces", r'namespaces "(?P<namespace>[^"]{1,63})" not found', EXACT + 1
            ),
        ),
    ),
    Fault(
        id="helm.version-unsupported",
        component="helm",
        title="helm version is too old or known to be broken",
        cause="This helm is too old for OCI charts, or is 3.13.0, which sends wrong credentials to registries.",
        remedy=("helm version", "Install helm 3.14 or newer, or helm 4"),
        signs=(
            said("helm 3.13.0"),
            said('scheme "oci" not supported', at=NAMED),
            said("could not find protocol handler for: oci", at=NAMED),
        ),
        links=(f"{HELM}/12449",),
    ),
    Fault(
        id="helm.failed",
        component="helm",
        title="Error: INSTALLATION FAILED / UPGRADE FAILED",
        cause="helm could not do it; the reason stands in the evidence.",
        remedy=("helm history {release} -n {namespace}", *HELM_LIST),
        signs=(
            said("installation failed:", at=GENERIC),
            said("upgrade failed:", at=GENERIC),
            said("uninstall failed:", at=GENERIC),
        ),
        defaults=_RELEASE,
    ),
)
