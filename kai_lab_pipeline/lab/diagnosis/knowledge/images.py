"""Images and programs that containers do not start from. Kubernetes 1.31 to 1.36, containerd 1.6 and 2.x."""

from __future__ import annotations

from kai_lab_pipeline.lab.diagnosis.knowledge.commands import on_node
from kai_lab_pipeline.lab.diagnosis.knowledge.pods import NOT_RUNNING
from kai_lab_pipeline.lab.diagnosis.model import CLASS, EXACT, NAMED, SYMPTOM, Fault, said, seen

_DEFAULTS = {"namespace": "default"}

FAULTS: tuple[Fault, ...] = (
    Fault(
        id="pod.image-not-found",
        component="kubelet",
        title="failed to pull and unpack image: ... not found",
        cause="No registry has the image {image}: the name or tag is wrong, or it was built here and not loaded "
        "into the node.",
        remedy=(
            "docker exec {node} crictl images",
            "kind load docker-image {image} --name {cluster}",
            "Correct the image or its tag; an image that is only on the node needs imagePullPolicy IfNotPresent "
            "and a tag",
        ),
        signs=(
            said("failed to resolve reference", r'reference "(?P<image>[^"]{1,300})": .{0,300}: not found', NAMED),
            said("manifest unknown", r'(?:image "(?P<image>[^"]{1,300})".{0,400})?manifest unknown', CLASS),
        ),
        explains=("pod.image-pull",),
        explains_missing=NOT_RUNNING,
        elsewhere=(
            on_node("crictl images"),
            "Correct the image or its tag, or push {image} to a registry that the nodes can pull from",
        ),
    ),
    Fault(
        id="pod.image-pull",
        component="kubelet",
        title="ImagePullBackOff / ErrImagePull",
        cause="The node cannot pull the image {image}; the reason stands in the pod's events.",
        remedy=(
            "kubectl describe pod -n {namespace} {pod}",
            "docker exec {node} crictl pull {image}",
            "Without internet: give a mirror in lab.toml [mirrors], or load the image and use a tag other than latest",
        ),
        signs=(
            seen("container", reason=("ImagePullBackOff", "ErrImagePull", "RegistryUnavailable"), at=SYMPTOM + 10),
            seen("event", "pull image", r'pull image "(?P<image>[^"]{1,300})"', SYMPTOM + 10, reason="Failed"),
            said("imagepullbackoff", at=SYMPTOM),
            said("errimagepull", at=SYMPTOM),
            said("failed to pull image", r'pull image "(?P<image>[^"]{1,300})"', SYMPTOM + 10),
            said("trying and failing to pull image", r'pod "(?P<pod>[^"]{1,253})"', SYMPTOM + 15),
            said("image can't be pulled", r'pod "(?P<pod>[^"]{1,253})"', SYMPTOM + 15),
            said("back-off pulling image", r'image "(?P<image>[^"]{1,300})"', SYMPTOM + 10),
        ),
        transient=True,
        defaults={**_DEFAULTS, "image": "of the pod"},
        explains=("pod.unready",),
        explains_missing=NOT_RUNNING,
        elsewhere=(
            "kubectl describe pod -n {namespace} {pod}",
            on_node("crictl pull {image}"),
            "Without internet: give a mirror in lab.toml [mirrors], and the nodes one of their own",
        ),
    ),
    Fault(
        id="pod.image-never",
        component="kubelet",
        title="ErrImageNeverPull",
        cause="The image {image} is not on the node, and imagePullPolicy Never forbids to pull it.",
        remedy=(
            "kind load docker-image {image} --name {cluster}",
            "docker exec {node} crictl images",
        ),
        signs=(
            seen("container", reason="ErrImageNeverPull"),
            said(
                "is not present with pull policy of never",
                r'image "(?P<image>[^"]{1,300})" is not present with pull policy',
                EXACT,
            ),
            said("errimageneverpull", at=NAMED),
        ),
        elsewhere=(
            on_node("crictl images"),
            "Push {image} to a registry that the nodes can pull from, and set imagePullPolicy IfNotPresent",
        ),
    ),
    Fault(
        id="pod.image-name",
        component="kubelet",
        title="InvalidImageName",
        cause="The image name {image} is not well formed: upper case, blanks, or a wrong separator.",
        remedy=("Correct the image in the manifest or chart values",),
        signs=(
            seen("container", reason="InvalidImageName"),
            said("couldn't parse image name", r'image name "(?P<image>[^"]{1,300})"', NAMED),
            said("invalid reference format", at=NAMED),
            said("invalidimagename", at=NAMED),
            said(
                "must not have leading or trailing whitespace",
                r'(?P<field>\S+\.image): Invalid value: "(?P<image>[^"]{1,300})"',
                EXACT,
            ),
        ),
        defaults={"image": "given"},
    ),
    Fault(
        id="pod.start-error",
        component="kubelet",
        title='unable to start container process: exec: "...": no such file or directory',
        cause="The image has no program {program}: the command in the manifest or chart does not fit the image. "
        "nvml-mock's image of main no longer has the scripts that the chart 0.3.0 calls.",
        remedy=(
            "kubectl describe pod -n {namespace} {pod}",
            "Use image and chart of the same version: both of v0.3.0 for nvml-mock",
        ),
        signs=(
            said("unable to start container process", r'exec: "(?P<program>[^"]{1,200})": ', NAMED),
            said("unable to start container process", at=CLASS),
            seen("container", reason=("StartError", "ContainerCannotRun", "RunContainerError"), at=CLASS),
        ),
        explains=("pod.crash-loop", "pod.error-exit", "pod.unready"),
        defaults={**_DEFAULTS, "program": "of that name"},
    ),
    Fault(
        id="pod.spec-generation",
        component="containerd",
        title="failed to generate container spec: lstat /var/lib/nvml-mock/driver/dev/...: no such file or directory",
        cause="containerd was told to pass a device or file that is gone from the node: {path}. The mock was "
        "removed or restarted under the device plugin.",
        remedy=(
            "kubectl rollout restart -n kube-system daemonset/nvidia-device-plugin-mock",
            "kubectl get pods -A -o wide | grep -e nvml-mock -e device-plugin",
        ),
        signs=(
            said(
                "failed to generate spec",
                r"failed to generate spec: (?:lstat|stat) (?P<path>\S{1,200}): no such file",
                EXACT,
            ),
            said("createcontainererror", at=CLASS),
            seen("container", reason="CreateContainerError", at=CLASS),
        ),
        transient=True,
        defaults={"path": "see the evidence"},
    ),
    Fault(
        id="pod.runtime-handler",
        component="containerd",
        title='failed to get sandbox runtime: no runtime for "..." is configured',
        cause="The pod's RuntimeClass names the handler {handler}, and containerd on the node has no runtime of "
        "that name. The lab's RuntimeClass nvidia uses a handler that every containerd has (runc).",
        remedy=(
            "kubectl get runtimeclass -o custom-columns=NAME:.metadata.name,HANDLER:.handler",
            "kubectl delete runtimeclass nvidia",
            "kubectl apply -f manifests/",
        ),
        signs=(
            said("no runtime for", r'no runtime for "(?P<handler>[^"]{1,100})" is configured', EXACT),
            said("runtimehandler", r'RuntimeHandler "(?P<handler>[^"]{1,100})" not supported', EXACT),
        ),
        explains=("pod.sandbox",),
    ),
    Fault(
        id="pod.sandbox",
        component="containerd",
        title="FailedCreatePodSandBox",
        cause="The node could not make the pod's sandbox: its network plugin or its runtime is not in order.",
        remedy=(
            "kubectl describe pod -n {namespace} {pod}",
            "kubectl get pods -n kube-system",
            "docker exec {node} journalctl -u containerd -n 50",
        ),
        signs=(
            seen("event", reason="FailedCreatePodSandBox", at=CLASS),
            said("failedcreatepodsandbox", at=CLASS),
            said("failed to create pod sandbox", at=CLASS),
            said("cni plugin not initialized", at=NAMED),
        ),
        transient=True,
        defaults=_DEFAULTS,
        elsewhere=(
            "kubectl describe pod -n {namespace} {pod}",
            "kubectl get pods -n kube-system",
            on_node("journalctl -u containerd -n 50"),
        ),
    ),
)
