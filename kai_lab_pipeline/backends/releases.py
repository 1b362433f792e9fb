"""Chart releases on a real cluster: installed with exactly the values given, healed when an earlier run was cut off.

What a killed helm leaves was measured with 3.22 and 4.3: a pending-install is removed, a pending upgrade or rollback is
rolled back, `uninstalling` is uninstalled again, and `failed` is upgraded in place. Helm's word is checked against
`helm list` afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tenacity

from kai_lab_pipeline.backends.base import Log, StepFacts
from kai_lab_pipeline.clients.helm import Helm, nested
from kai_lab_pipeline.clients.kubernetes import ApiError, Cluster, is_transient
from kai_lab_pipeline.clients.mirrors import OCI
from kai_lab_pipeline.clients.tools import Outcome, ToolError
from kai_lab_pipeline.lab.errors import LabError
from kai_lab_pipeline.settings import Chart

SHARED_NAMESPACES = frozenset({"default", "kube-system", "kube-public"})
WEBHOOKS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
ATTEMPTS = 6
LOG_TAIL = 6


def kubectl_of(cluster: Cluster) -> str:
    """kubectl on this cluster and no other, as a person types it."""
    return f"kubectl --kubeconfig {cluster.kubeconfig} --context {cluster.context}"


def chart_name(component: str) -> str:
    """Name of a component's chart as its Chart.yaml has it, which helm lists whatever file the chart came from."""
    return component.replace("_", "-")


def is_release_of(component: str, row: Mapping[str, Any]) -> bool:
    """Whether a row of `helm list` is a release of the component's chart, in any version."""
    return str(row.get("chart", "")).startswith(f"{chart_name(component)}-")


def served_from(webhooks: Mapping[str, Any], namespace: str) -> bool:
    """Whether a webhook configuration calls services of this namespace, and of no other."""
    services = [(hook.get("clientConfig") or {}).get("service") or {} for hook in webhooks.get("webhooks") or ()]
    return {service.get("namespace") for service in services} == {namespace}


class Releases:
    """The releases of one cluster."""

    def __init__(
        self,
        helm: Helm,
        cluster: Cluster,
        *,
        pause: Callable[[float], None] = time.sleep,
        foreign: Callable[[str, str], bool] = lambda resource, name: False,
    ) -> None:
        """`foreign` tells which cluster-wide objects (resource, name) are somebody else's and stay."""
        self._foreign = foreign
        self._helm = helm
        self._cluster = cluster
        self._pause = pause

    def rows(self) -> Sequence[Mapping[str, Any]]:
        return self._helm.releases()

    def install(self, chart: Chart, log: Log, *, deadline_s: float, repair: bool = False) -> StepFacts:
        """Install or upgrade; raises ToolError with the first error, its hint, and what did not come up.

        With `repair` a release that is deployed as wanted is upgraded all the same: helm then writes over what was
        changed on the cluster since.
        """
        row = self._helm.find(chart.release, chart.namespace)
        if not repair and row is not None and row.get("status") == "deployed" and self._same(row, chart):
            return self._facts(row, "is already deployed with these values", changed=False)
        healed = self._heal(chart, row, log)
        if row is None:
            self._clear_stale_webhooks(chart, log)
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_passes_by_itself),
            stop=tenacity.stop_after_attempt(ATTEMPTS) | tenacity.stop_after_delay(deadline_s),
            wait=tenacity.wait_exponential(multiplier=1, max=10),
            sleep=self._pause,
            before_sleep=lambda state: log(_waiting(chart, state)),
            reraise=True,
        )
        outcome: Outcome | None = None
        try:
            outcome = retrying(self._helm.upgrade_install, chart, deadline_s=deadline_s, log=log)
        except ToolError as error:
            error.add_seen(self.hanging(chart.namespace))
            raise
        row = self._helm.find(chart.release, chart.namespace)
        if row is None or row.get("status") != "deployed":
            raise LabError(
                f"helm ended well, and {chart.release} is {row.get('status') if row else 'not there'}",
                where=f"namespace {chart.namespace}",
                seen=outcome.last_lines(3),
                next_step="Run it again: the lab heals the release.",
            )
        attempts = int(retrying.statistics.get("attempt_number", 1))
        return self._facts(row, "deployed", changed=True, attempts=attempts, healed=healed, outcome=outcome)

    def uninstall(self, chart: Chart, log: Log) -> StepFacts:
        """Remove a release and the webhooks it left, which would refuse every pod from then on."""
        outcome = self._helm.uninstall(chart.release, chart.namespace, log=log)
        removed = self._clear_stale_webhooks(chart, log)
        if outcome is None:
            return StepFacts(f"{chart.release} was not there", changed=bool(removed))
        return StepFacts(f"{chart.release} is removed")

    def hanging(self, namespace: str) -> str:
        """Pods of a namespace that are not up, with the end of their logs: why a hook or a rollout did not end."""
        lines: list[str] = []
        try:
            pods = self._cluster.objects("pods", namespace=namespace)
        except ApiError as error:
            return f"The pods of {namespace} cannot be read: {error.message}"
        for pod in [pod for pod in pods if not _is_up(pod)][:5]:
            name = pod["metadata"]["name"]
            lines.append(f"pod {namespace}/{name}: {_state(pod)}")
            for container in pod.get("spec", {}).get("containers", ()):
                try:
                    text = self._cluster.logs(namespace, name, container["name"], tail=LOG_TAIL)
                except ApiError:
                    continue  # it has not started: its state above says why
                lines += [f"  {container['name']}: {line}" for line in text.splitlines()[-LOG_TAIL:]]
        return "\n".join(lines)

    def _same(self, row: Mapping[str, Any], chart: Chart) -> bool:
        """Whether a release is what would be installed; what is local is known by what its revision says was in it."""
        if chart.chart.startswith(OCI):
            if row.get("chart") != f"{chart.chart.rsplit('/', 1)[-1]}-{chart.version}":
                return False
        else:
            revisions = self._helm.history(chart.release, chart.namespace)
            if not revisions or revisions[-1].get("description") != self._helm.description(chart):
                return False
        return self._helm.values(chart.release, chart.namespace) == nested(chart.values)

    def _heal(self, chart: Chart, row: Mapping[str, Any] | None, log: Log) -> str:
        """Bring a release that was cut off into a state that can be upgraded; returns what was found, or ''."""
        status = str(row.get("status", "")) if row else ""
        if status in ("", "deployed", "superseded"):
            return ""
        revisions = self._helm.history(chart.release, chart.namespace)
        said = str(revisions[-1].get("description", "")) if revisions else ""
        found = f"{status} ({said})" if said else status
        log(f"{chart.release} was left {found} by an earlier run; healing it")
        good = [str(item["revision"]) for item in revisions if item.get("status") in ("deployed", "superseded")]
        if status in ("pending-upgrade", "pending-rollback") and good:
            outcome = self._helm.rollback(chart.release, good[-1], chart.namespace, log=log)
            if outcome.exit_code != 0:
                # Measured with KAI 0.16.8 -> 0.17.0: the rollback fails, and leaves `failed`, which can be upgraded.
                log(f"rollback to revision {good[-1]} did not work, upgrading in place: {outcome.last_lines(1)}")
        elif status.startswith("pending") or status in ("uninstalling", "unknown"):
            self._helm.uninstall(chart.release, chart.namespace, log=log)
        return found

    def _clear_stale_webhooks(self, chart: Chart, log: Log) -> list[str]:
        """Delete webhooks whose services were in the namespace of a chart that is not installed, and are gone.

        They would refuse every pod. A webhook whose service is there serves somebody, and stays.
        """
        if chart.namespace in SHARED_NAMESPACES:
            return []
        removed = []
        for resource in WEBHOOKS:
            for obj in self._cluster.objects(resource):
                if not served_from(obj, chart.namespace):
                    continue
                names = {str(hook["clientConfig"]["service"].get("name")) for hook in obj["webhooks"]}
                if self._foreign(resource, str(obj["metadata"]["name"])):
                    continue
                if not any(self._cluster.find("services", name, namespace=chart.namespace) for name in names):
                    name = str(obj["metadata"]["name"])
                    log(f"removing webhook {name}, which an earlier {chart.release} left: its service is gone")
                    self._cluster.delete(resource, name)
                    removed.append(name)
        return removed

    @staticmethod
    def _facts(
        row: Mapping[str, Any],
        did: str,
        *,
        changed: bool,
        attempts: int = 1,
        healed: str = "",
        outcome: Outcome | None = None,
    ) -> StepFacts:
        facts = {"chart": str(row.get("chart", "")), "revision": str(row.get("revision", ""))}
        if outcome is not None:
            facts["helm_seconds"] = f"{outcome.seconds:.1f}"
            digests = [line.split()[-1] for line in outcome.text.splitlines() if line.startswith("Digest: sha256:")]
            facts |= {"chart_digest": digests[0]} if digests else {}
        facts |= {"healed_from": healed} if healed else {}
        summary = f"{row.get('name')} {did}: {facts['chart']}, revision {facts['revision']}"
        return StepFacts(summary, changed=changed, attempts=attempts, facts=facts)


def _passes_by_itself(error: BaseException) -> bool:
    """A webhook that does not serve yet, or a CRD that was made a moment ago; nothing else is repeated."""
    if not isinstance(error, ToolError):
        return False
    return is_transient(500, error.outcome.text) or error.fault == "kubernetes.kind-unknown"


def _waiting(chart: Chart, state: tenacity.RetryCallState) -> str:
    error = state.outcome.exception() if state.outcome else None
    cause = error.cause if isinstance(error, ToolError) else str(error)
    return f"{chart.release}: {cause}; attempt {state.attempt_number + 1} follows"


def _is_up(pod: Mapping[str, Any]) -> bool:
    status = pod.get("status") or {}
    if status.get("phase") == "Succeeded":
        return True
    return any(item.get("type") == "Ready" and item.get("status") == "True" for item in status.get("conditions") or ())


def _state(pod: Mapping[str, Any]) -> str:
    status = pod.get("status") or {}
    reasons = [
        f"{state['reason']}: {state.get('message', '')}".rstrip(": ")
        for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
        for state in (container.get("state") or {}).values()
        if isinstance(state, dict) and state.get("reason")
    ]
    unmet = [
        str(item.get("message"))
        for item in status.get("conditions") or ()
        if item.get("type") == "PodScheduled" and item.get("status") == "False" and item.get("message")
    ]
    return ", ".join([str(status.get("phase", "unknown")), *reasons, *unmet])
