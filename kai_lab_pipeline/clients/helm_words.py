"""What helm's words mean: 3.22 and 4.3 as recorded in success and failure. The first entry that matches counts."""

from __future__ import annotations

from collections.abc import Sequence

from kai_lab_pipeline.clients.docker import REGISTRY
from kai_lab_pipeline.clients.tools import Hint

HINTS: Sequence[Hint] = (
    Hint(
        r"cluster unreachable: context \"(?P<context>[^\"]+)\" does not exist",
        "the kubeconfig has no context {context}",
        "See 'kubectl config get-contexts'; name one in lab.context (KAI_LAB_CONTEXT).",
    ),
    Hint(
        r"getting credentials: (?P<why>exec: .*)",
        "the kubeconfig's credential plugin failed",
        "Run the plugin by hand, log in again, then rerun: {why}",
    ),
    Hint(
        r"asked for the client to provide credentials|cluster unreachable: Unauthorized",
        "the API server does not accept the kubeconfig's credentials",
        "Log in to the cluster again and check with 'kubectl get nodes'.",
    ),
    Hint(r"error loading config file", "the kubeconfig cannot be read", "Correct the file that is named above."),
    Hint(
        r"cluster unreachable: .*x509: ",
        "the API server's certificate is not trusted",
        "The kubeconfig is of another cluster, or the cluster was made anew: get its kubeconfig again.",
    ),
    Hint(
        r"cluster unreachable|the server was unable to return a response|http2: client connection lost",
        "the API server does not answer",
        "See whether the cluster runs ('docker ps' for kind); run it again and the lab goes on from there.",
        transient=True,
    ),
    Hint(
        r"failed calling webhook \"(?P<webhook>[^\"]+)\"[\s\S]*?"
        r"(?:connection refused|no endpoints available|EOF|context deadline exceeded)",
        "the webhook {webhook} does not answer yet",
        "Wait for its Deployment to be Available and run it again.",
        transient=True,
        retry=True,
    ),
    Hint(
        r"admission webhook \"(?P<webhook>[^\"]+)\" denied the request: (?P<why>.*)",
        "the webhook {webhook} denied it: {why}",
        "Correct the values; repeating it will not help.",
    ),
    Hint(
        r"no matches for kind \"(?P<kind>[^\"]+)\"",
        "the API server does not know the kind {kind} (yet)",
        "If its CRD was just made, run it again; else the chart that brings it is missing.",
        transient=True,
        retry=True,
    ),
    Hint(
        r"another operation \(install/upgrade/rollback\) is in progress",
        "the release is held by an operation that was cut off or still runs",
        "If no other helm works on it, run it again: the lab heals a pending release.",
        transient=True,
    ),
    Hint(
        r"cannot re-?use a name that is still in use|has no deployed releases",
        "the release name is taken by a release that never became deployed",
        "Run it again: the lab heals it; by hand: helm uninstall RELEASE -n NAMESPACE",
    ),
    Hint(
        r"(?P<when>(?:pre|post)-(?:install|upgrade|rollback))(?: hooks? failed)?: [\s\S]*"
        r"(?:timed out waiting for the condition|context deadline exceeded|BackoffLimitExceeded)",
        "the chart's {when} hook did not end; why is in the log of its Job",
        "Look at the hook's log (kubectl logs job/NAME); a value of the wrong type is the usual cause. Correct it and "
        "run it again: the lab heals the failed release.",
    ),
    Hint(
        r"not ready\. status: InProgress|timed out waiting for the condition|context deadline exceeded",
        "helm gave up waiting; what it made may still come up",
        "Look at the pods; run it again and the lab upgrades the release in place.",
        transient=True,
    ),
    Hint(r"context canceled", "it was cancelled", "Run it again: the lab heals the release.", transient=True),
    Hint(
        r"source: (?P<chart>\S+?): not found|GET \"(?P<url>[^\"]+)\": response status code 404",
        "the chart or its version is not in the registry",
        "Check chart and version in lab.toml, letter by letter: 0.17.0 is not v0.17.0, 1.1.0 is not 1.1.0-chart.",
    ),
    Hint(
        r"unable to locate any tags|could not locate a version matching",
        "the registry has no version that helm would take",
        "Name the exact version: helm ignores tags that begin with v, and pre-releases, unless they are named.",
    ),
    Hint(
        r"(?:Get|GET|Head|HEAD) \"https?://(?P<host>[^/\"]+)/v2/.*connection refused",
        "the registry {host} does not answer",
        "Start it, or correct lab.toml [mirrors].",
        transient=True,
    ),
    Hint(
        r"response status code 5\d\d",
        "the registry has trouble of its own",
        "Run it again later, or give a mirror; this says nothing about the version.",
        transient=True,
    ),
    Hint(
        r"values don't meet the specifications of the schema",
        "the chart refuses a value",
        "Correct the values of this chart in lab.toml; the lines above name them.",
    ),
    Hint(
        r"Unknown GPU profile \"(?P<profile>[^\"]+)\"",
        "the mock knows no card {profile}",
        'Take one of the profiles above for "gpu.profile" in lab.toml.',
    ),
    Hint(
        r"exists and cannot be imported into the current release",
        "an object of this name belongs to something else",
        "Another release or a person made it: remove that one, or take the namespace and release it belongs to.",
    ),
    Hint(
        r"is forbidden: User \"(?P<user>[^\"]+)\" cannot (?P<right>\w+ resource \"[^\"]+\")",
        "{user} has not the right to {right}",
        "Installing these charts needs cluster-admin: use a context that has it.",
    ),
    Hint(r"is being terminated", "the namespace is being deleted", "Wait until it is gone, then run it again.", True),
    Hint(r"exceeded quota", "a resource quota of the namespace is used up", "Raise or remove the ResourceQuota."),
    Hint(
        r"conflicts? with \"(?P<manager>[^\"]+)\"",
        "{manager} owns fields that the chart wants to set",
        "Remove the object or give the fields back, then run it again.",
    ),
    Hint(
        r"path \"[^\"]+\" not found|Chart\.yaml file is missing|does not appear to be a gzipped archive",
        "that is no chart",
        "Name a chart folder, a chart archive (.tgz) or an oci:// reference in lab.toml.",
    ),
    Hint(
        r"unknown (?:shorthand )?flag|unknown command",
        "this helm does not know the option",
        "Use helm 3.14 or newer, or helm 4.",
    ),
    *REGISTRY,
)
