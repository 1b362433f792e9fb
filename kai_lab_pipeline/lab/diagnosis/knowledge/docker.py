"""Faults of docker, with the words of engine 20.10 and clients 20.10 and 28.2."""

from __future__ import annotations

from kai_lab_pipeline.lab.diagnosis.model import CLASS, EXACT, NAMED, SYMPTOM, Fault, said

FAULTS: tuple[Fault, ...] = (
    Fault(
        id="docker.daemon-down",
        component="docker",
        title="Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
        cause="No docker daemon answers at {socket}: it is stopped, or DOCKER_HOST points elsewhere.",
        remedy=("sudo systemctl start docker", "docker info", "kai-lab doctor"),
        signs=(
            said(
                "cannot connect to the docker daemon",
                r"docker daemon(?: at (?P<socket>[a-z]{1,10}://[^\s\"]{1,200}?)\.? )?",
            ),
            said("errors pretty printing info", at=CLASS),
            said("error during connect: ", r"error during connect: .{1,300}docker"),
        ),
        transient=True,
        versions="docker 20.10 to 29",
        explains=("docker.image-not-local", "net.*", "kubernetes.api-down"),
        defaults={"socket": "its socket"},
    ),
    Fault(
        id="docker.permission-denied",
        component="docker",
        title="permission denied while trying to connect to the Docker daemon socket",
        cause="The docker daemon runs, but this user may not talk to it.",
        remedy=("sudo usermod -aG docker $USER", "newgrp docker", "docker info"),
        signs=(
            said("permission denied while trying to connect to the docker", at=EXACT),
            said("docker.sock: connect: permission denied", at=EXACT),
        ),
        versions="docker 20.10 to 29",
    ),
    Fault(
        id="docker.no-space",
        component="docker",
        title="no space left on device",
        cause="The disk that holds images, containers or the lab's state is full.",
        remedy=("df -h", "docker system df", "docker image prune", "docker builder prune", "kai-lab down"),
        signs=(said("no space left on device"), said("disk quota exceeded")),
        explains=("docker.build-step-failed", "pod.start-error"),
    ),
    Fault(
        id="docker.buildx-missing",
        component="docker",
        title="BuildKit is enabled but the buildx component is missing or broken",
        cause="DOCKER_BUILDKIT=1 is set, and this docker client has no buildx plugin.",
        remedy=("unset DOCKER_BUILDKIT", "or install the docker-buildx plugin"),
        signs=(said("buildx component is missing or broken", at=EXACT),),
        versions="docker client 23 and newer",
    ),
    Fault(
        id="docker.dockerfile-missing",
        component="docker",
        title="unable to evaluate symlinks in Dockerfile path: no such file or directory",
        cause="The Dockerfile that was named is not there: another git ref, or a wrong path.",
        remedy=("Check image.nvml_mock.dockerfile and the checkout or git ref in lab.toml", "kai-lab doctor"),
        signs=(
            said("unable to evaluate symlinks in dockerfile path"),
            said("failed to read dockerfile"),
        ),
    ),
    Fault(
        id="docker.build-step-failed",
        component="docker",
        title="The command '...' returned a non-zero code",
        cause="A step of the Dockerfile failed. Its own output stands above this line; nvml-mock's build on main "
        "needs the network, for it carries no vendored sources.",
        remedy=(
            "Read the lines above: they are the step's own output",
            "To go without a build, name an archive in image.nvml_mock.archive of lab.toml",
        ),
        signs=(
            said("returned a non-zero code", r"the command '[^']{1,500}' returned a non-zero code"),
            said("executor failed running"),
            said("did not complete successfully: exit code"),
        ),
    ),
    Fault(
        id="docker.privileged-refused",
        component="docker",
        title="OCI runtime create failed: ... unable to apply caps: operation not permitted",
        cause="The daemon may not start privileged containers here; kind's nodes need them.",
        remedy=("Run on a machine or CI runner that allows privileged containers", "kai-lab run --backend rehearsal"),
        signs=(
            said("unable to apply caps: operation not permitted", at=EXACT),
            said("privileged mode is incompatible with user namespaces", at=EXACT),
        ),
        versions="docker 20.10 and newer",
    ),
    Fault(
        id="docker.container-not-running",
        component="docker",
        title="Error response from daemon: Container ... is not running",
        cause="The node's container {container} is stopped, as after a reboot or a docker stop.",
        remedy=("docker ps -a --filter label=io.x-k8s.kind.cluster", "docker start {node}"),
        signs=(
            said("is not running", r"container (?P<container>[0-9a-zA-Z_.-]{1,80}) is not running"),
            said("cannot exec in a stopped"),
        ),
        transient=True,
        explains=("kind.snapshotter", "kind.image-digest", "kind.export-logs"),
        defaults={"container": ""},
    ),
    Fault(
        id="docker.image-not-local",
        component="docker",
        title="image: ... not present locally",
        cause="The local docker does not have {image}. kind says the same when the daemon is down or unreachable.",
        remedy=("docker info", "docker image inspect {image}", "docker pull {image}", "or build it, then run it again"),
        signs=(
            said("not present locally", r'image: "(?P<image>[^"]{1,200})" not present locally'),
            said("no such image", r"no such image: (?P<image>\S{1,200})"),
        ),
    ),
    Fault(
        id="docker.name-in-use",
        component="docker",
        title="Conflict. The container name ... is already in use by container",
        cause="A container of that name is left from before.",
        remedy=("docker ps -a", "docker rm -f {container}"),
        signs=(said("is already in use by container", r'container name "/?(?P<container>[^"]{1,100})"'),),
    ),
    Fault(
        id="docker.missing",
        component="docker",
        title="docker: command not found",
        cause="The command {tool} is not on the PATH.",
        remedy=("kai-lab doctor", "Install {tool}, or rehearse without any tool: kai-lab run --backend rehearsal"),
        signs=(
            said("command not found", r"\b(?P<tool>docker|kind|helm|kubectl): command not found"),
            said("executable file not found in $path", r'"(?P<tool>[\w.-]{1,60})": executable file not found'),
            said("no such file or directory: 'docker'", r"directory: '(?P<tool>docker)'"),
            said("no such file or directory: 'kind'", r"directory: '(?P<tool>kind)'"),
            said("no such file or directory: 'helm'", r"directory: '(?P<tool>helm)'"),
        ),
        versions="any tool",
    ),
    Fault(
        id="docker.client-too-new",
        component="docker",
        title="client version ... is too new / too old. Maximum supported API version is ...",
        cause="The docker client and the daemon do not share an API version.",
        remedy=("docker version", "export DOCKER_API_VERSION={api_version}"),
        signs=(
            said("maximum supported api version is", r"API version is (?P<api_version>[0-9.]{1,10}\d)"),
            said("minimum supported api version is", r"API version is (?P<api_version>[0-9.]{1,10}\d)"),
        ),
    ),
    Fault(
        id="docker.error",
        component="docker",
        title="Error response from daemon",
        cause="The docker daemon refused. What it says stands in the evidence.",
        remedy=("docker info", "docker events --since 10m --until 0s"),
        signs=(said("error response from daemon", at=SYMPTOM - 15), said("no such container", at=NAMED)),
    ),
)
