"""Admission webhooks that fail or deny, of KAI, the isolator or anybody. API server 1.34."""

from __future__ import annotations

from kai_lab_pipeline.lab.diagnosis.model import CLASS, EXACT, NAMED, SYMPTOM, Fault, said

_NAME = r'failed calling webhook "(?P<webhook>[^"]{1,200})"'
_SERVICE = r"(?:.{0,200}https://(?P<service>[a-z0-9-]{1,63})\.(?P<namespace>[a-z0-9-]{1,63})\.svc\b)?"
_CALL = _NAME + _SERVICE
_LOOK = (
    "kubectl get endpoints -n {namespace} {service}",
    "kubectl get pods -n {namespace}",
    "kubectl logs -n {namespace} deploy/{service} --tail=50",
)
KAI = "https://github.com/kai-scheduler/KAI-Scheduler"

FAULTS: tuple[Fault, ...] = (
    Fault(
        id="webhook.refused",
        component="webhook",
        title='failed calling webhook "...": dial tcp ...:443: connect: connection refused',
        cause="The webhook {webhook} is registered, and its server does not listen yet, restarts, or has no ready pod.",
        remedy=(*_LOOK, "Wait until its Deployment is Available and run it again"),
        signs=(said("failed calling webhook", _CALL + r".{0,300}connection refused", NAMED),),
        transient=True,
        explains=("net.*",),
    ),
    Fault(
        id="webhook.no-endpoints",
        component="webhook",
        title='failed calling webhook "...": no endpoints available for service',
        cause="The webhook {webhook} is registered, and its Service {service} has no ready pod behind it.",
        remedy=_LOOK,
        signs=(said("no endpoints available for service", _CALL + r".{0,300}no endpoints available", NAMED),),
        transient=True,
    ),
    Fault(
        id="webhook.service-missing",
        component="webhook",
        title='failed calling webhook "...": service "..." not found',
        cause="The webhook {webhook} points to the Service {service} that is gone: an uninstall left its "
        "configuration behind, and with failurePolicy Fail nothing it covers can be created.",
        remedy=(
            "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations",
            "kubectl delete validatingwebhookconfigurations,mutatingwebhookconfigurations -l "
            "app.kubernetes.io/managed-by=kai-operator",
            "or install the release that serves it again",
        ),
        signs=(said("failed calling webhook", _CALL + r'.{0,300}service "[^"]{1,80}" not found', EXACT),),
        links=(f"{KAI}/issues/751", f"{KAI}/issues/661", f"{KAI}/issues/1618"),
    ),
    Fault(
        id="webhook.timeout",
        component="webhook",
        title='failed calling webhook "...": context deadline exceeded',
        cause="The webhook {webhook} did not answer in time: it is overloaded, hangs, or the network drops the call.",
        remedy=(*_LOOK, "kubectl top pods -n {namespace}"),
        signs=(
            said(
                "failed calling webhook",
                _CALL + r".{0,300}(?:context deadline exceeded|i/o timeout|Client\.Timeout)",
                NAMED,
            ),
        ),
        transient=True,
        explains=("helm.wait-timeout", "net.*"),
    ),
    Fault(
        id="webhook.certificate",
        component="webhook",
        title='failed calling webhook "...": tls: failed to verify certificate: x509',
        cause="The API server does not trust the certificate of webhook {webhook}: the caBundle in its "
        "configuration and the certificate in its Secret are not a pair, or the certificate is for another name.",
        remedy=(
            "kubectl get mutatingwebhookconfigurations,validatingwebhookconfigurations -o yaml",
            "kubectl get secrets -n {namespace}",
            "Delete the webhook's TLS Secret and restart its Deployment, so that both are written anew",
        ),
        signs=(said("failed calling webhook", _CALL + r".{0,300}x509: ", EXACT),),
    ),
    Fault(
        id="webhook.not-tls",
        component="webhook",
        title='failed calling webhook "...": tls: first record does not look like a TLS handshake',
        cause="What answers for webhook {webhook} does not speak TLS: a wrong port, or another program.",
        remedy=(
            "kubectl get service -n {namespace} {service} -o yaml",
            "kubectl get endpoints -n {namespace} {service}",
        ),
        signs=(
            said("failed calling webhook", _CALL + r".{0,300}first record does not look like a TLS handshake", EXACT),
        ),
    ),
    Fault(
        id="webhook.bad-answer",
        component="webhook",
        title='failed calling webhook "...": received invalid webhook response / an error on the server',
        cause="The webhook {webhook} answered, and not with a valid AdmissionReview: its server fails, or is of "
        "another version.",
        remedy=_LOOK,
        signs=(
            said("received invalid webhook response", _CALL, EXACT),
            said(
                "failed calling webhook",
                _CALL + r".{0,300}(?:json parse error|an error on the server|couldn't get version)",
                EXACT,
            ),
        ),
    ),
    Fault(
        id="webhook.failed",
        component="webhook",
        title='failed calling webhook "..."',
        cause="The webhook {webhook} could not be asked, so the API server refused the object.",
        remedy=_LOOK,
        signs=(said("failed calling webhook", _CALL, CLASS),),
        transient=True,
    ),
    Fault(
        id="webhook.denied",
        component="webhook",
        title='admission webhook "..." denied the request',
        cause="The webhook {webhook} does not allow it: {why}",
        remedy=(
            "Correct the object as the text says; repeating it will not help",
            "kubectl apply --dry-run=server -f FILE",
        ),
        signs=(
            said(
                "denied the request",
                r'admission webhook "(?P<webhook>[^"]{1,200})" denied the request: (?P<why>.{1,300})',
                CLASS,
            ),
        ),
        defaults={"why": "it gave no reason"},
    ),
    Fault(
        id="webhook.tls-noise",
        component="webhook",
        title="http: TLS handshake error from ...: EOF / remote error: tls: bad certificate",
        cause="A caller of a webhook broke off or did not trust its certificate: usual while certificates are "
        "being written.",
        remedy=("Look whether it goes on: kubectl logs DEPLOYMENT --since=1m",),
        signs=(said("http: tls handshake error", at=SYMPTOM),),
        transient=True,
    ),
)
