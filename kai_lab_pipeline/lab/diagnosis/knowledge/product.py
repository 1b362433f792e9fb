"""Dagster and this project itself: history, locks, settings, evidence and the rehearsal. Dagster 1.13."""

from __future__ import annotations

from kai_lab_pipeline.lab.diagnosis.model import CLASS, EXACT, NAMED, Fault, said

DAGSTER = "https://github.com/dagster-io/dagster/issues"

FAULTS: tuple[Fault, ...] = (
    Fault(
        id="dagster.temporary-home",
        component="Dagster",
        title="Using temporary directory ... for storage. This will be removed when dagster dev exits",
        cause="DAGSTER_HOME is not set, so Dagster keeps all history in a temporary folder and loses it when it stops.",
        remedy=("make dev", "kai-lab dev"),
        signs=(
            said("using temporary directory", r"using temporary directory .{1,300}for storage", EXACT),
            said("no dagster instance configuration file", at=CLASS),
            said("$dagster_home is not set", at=EXACT),
            said("dagster_home environment variable", r"dagster_home environment variable is (?:not set|unset)", EXACT),
        ),
        links=(f"{DAGSTER}/12101",),
    ),
    Fault(
        id="dagster.home-invalid",
        component="Dagster",
        title="$DAGSTER_HOME must be an absolute path / is not a directory or does not exist",
        cause="DAGSTER_HOME names no absolute folder that exists.",
        remedy=("unset DAGSTER_HOME", "make dev", "kai-lab run"),
        signs=(
            said(
                "dagster_home",
                r"\$?DAGSTER_HOME.{0,300}(?:must be an absolute path|is not a directory|does not exist)",
                EXACT,
            ),
        ),
    ),
    Fault(
        id="dagster.database-locked",
        component="Dagster",
        title="sqlite3.OperationalError: database is locked",
        cause="Several processes write Dagster's SQLite history at once, or it lies on a network drive.",
        remedy=(
            "Stop all but one: pgrep -af dagster",
            "Keep DAGSTER_HOME on a local disk",
            "The rehearsal uses one process for all steps; keep the in-process executor for it",
        ),
        signs=(said("database is locked", at=EXACT), said("database table is locked", at=EXACT)),
        transient=True,
        links=("https://github.com/catalyst-cooperative/pudl/issues/2977",),
    ),
    Fault(
        id="dagster.second-daemon",
        component="Dagster",
        title="Another ... daemon is still sending heartbeats",
        cause="Two Dagster daemons work on one history: one UI too many is running, and schedules would run twice.",
        remedy=("pgrep -af 'dagster dev|dagster-daemon'", "Stop all but one of them"),
        signs=(said("daemon is still sending heartbeats", at=EXACT),),
        links=("https://github.com/HirofumiTsuda/dagster-prometheus-exporter/pull/88",),
    ),
    Fault(
        id="dagster.daemon-dead",
        component="Dagster",
        title="The daemon is not running / No daemon heartbeats received recently",
        cause="No Dagster daemon runs, so schedules, sensors and queued runs stand still and it looks as if "
        "nothing was planned.",
        remedy=("make dev", "That starts UI and daemon together", "kai-lab nightly"),
        signs=(
            said("daemon is not running", at=NAMED),
            said("no daemon heartbeats", at=NAMED),
            said("daemons are not running", at=NAMED),
            said("no heartbeat data for dagster daemons", at=NAMED),
            said("stopped by heartbeat timeout", at=NAMED),
        ),
        links=(f"{DAGSTER}/33962",),
    ),
    Fault(
        id="dagster.pool-busy",
        component="Dagster",
        title="step is waiting: concurrency pool ... has no free slots",
        cause="A limit was set for the lab's pool, and other runs use it up. The project sets none: that one lab has "
        "one writer is the matter of its lock.",
        remedy=(
            "Take the pool's limit away in Deployment > Concurrency of the UI",
            "kai-lab status",
        ),
        signs=(
            said("blocked by concurrency limit", at=NAMED),
            said("blocked by limit for pool", at=NAMED),
            said("pool", r"pool .{1,80}(?:no|0) (?:free|available) slots", NAMED),
        ),
        transient=True,
    ),
    Fault(
        id="dagster.code-location",
        component="Dagster",
        title="DagsterUserCodeUnreachableError / Error loading repository location",
        cause="Dagster could not load the project's code: an import fails, or the code server died.",
        remedy=("make setup", ".venv/bin/python -c 'import kai_lab_pipeline.definitions'", "kai-lab doctor"),
        signs=(
            said("dagsterusercodeunreachableerror", at=NAMED),
            said("error loading repository location", at=NAMED),
            said("could not load location", at=NAMED),
            said("modulenotfounderror: no module named 'kai_lab_pipeline", at=EXACT),
        ),
    ),
    Fault(
        id="dagster.process-died",
        component="Dagster",
        title="Execution of run ... failed. Run worker process unexpectedly exited",
        cause="The process of the run or step was killed (by a person, a restart, or for want of memory), so the "
        "step could not say what it did. What it started on the cluster may still go on.",
        remedy=(
            "dmesg | grep -i 'killed process'",
            "kai-lab run",
            "It goes on from what is there and heals pending releases",
        ),
        signs=(
            said(
                "multiprocess executor: child process for step",
                r"child process for step (?P<step>\S{1,100}) unexpectedly exited",
                EXACT,
            ),
            said("unexpectedly exited", at=CLASS),
            said("run worker", r"run worker (?:failed|process unexpectedly|.{0,60}unhealthy)", NAMED),
            said("childprocesscrashexception", at=NAMED),
            said("dagsterexecutioninterruptederror", at=NAMED),
        ),
        transient=True,
        links=(f"{DAGSTER}/4308", f"{DAGSTER}/15258", f"{DAGSTER}/19670"),
    ),
    Fault(
        id="dagster.check-blocked",
        component="Dagster",
        title="Blocking check failed / Skipping execution because of failed asset checks",
        cause="A gate is red, so what depends on it did not run. Look at the first red check: the others follow "
        "from it. The lab's steps verify their gates on the live cluster too.",
        remedy=(
            "kai-lab report",
            "kai-lab check",
            "Correct the first red check's cause, then: kai-lab run --select ASSET+",
        ),
        signs=(
            said("blocking asset check", at=NAMED),
            said("blocking check", r"\d+ blocking (?:asset )?checks? failed", NAMED),
            said("dagsterassetcheckfailederror", at=NAMED),
            said(
                "and that is not in order",
                r"(?P<asset>\w{1,60}) is built on (?P<gate>\w{1,60}), and that is not in order",
                EXACT,
            ),
        ),
        links=(f"{DAGSTER}/17251", f"{DAGSTER}/20659", f"{DAGSTER}/26854"),
    ),
    Fault(
        id="lab.another-writer",
        component="kai-lab",
        title="Another writer is at work on this lab",
        cause="A run, a tear-down or the UI writes this lab at this moment; one lab has one writer.",
        remedy=("kai-lab status", "Wait until it has ended, or use another lab: KAI_LAB_NAME=other kai-lab run"),
        signs=(said("another writer is at work on this lab", at=EXACT),),
        transient=True,
    ),
    Fault(
        id="lab.other-backend",
        component="kai-lab",
        title="The lab was made with backend ...; another backend needs another lab",
        cause="A lab keeps the backend it was made with, so that a simulated result never passes for a real one. "
        "This one was made with {backend}.",
        remedy=("KAI_LAB_NAME=other kai-lab run --backend BACKEND", "or remove this lab first: kai-lab down --all"),
        signs=(said("needs another lab", r"made with backend '(?P<backend>\w{1,40})'", EXACT),),
        defaults={"backend": "another one"},
    ),
    Fault(
        id="lab.no-cluster",
        component="kai-lab",
        title="The lab has no cluster / has not been given its cluster yet",
        cause="A step was asked for, and its cluster is not there: never made, or taken down.",
        remedy=("kai-lab run", "kai-lab status"),
        signs=(
            said("the lab has no cluster", at=EXACT),
            said("the lab has not been given its cluster yet", at=EXACT),
            said("there is no kind cluster", at=NAMED),
        ),
    ),
    Fault(
        id="lab.context-not-named",
        component="kai-lab",
        title="Backend 'context' needs the name of a kubeconfig context; the current one is never used",
        cause="The lab never touches a cluster that was not named to it.",
        remedy=("kubectl config get-contexts", "KAI_LAB_CONTEXT=NAME kai-lab run --backend context"),
        signs=(said("needs the name of a kubeconfig context", at=EXACT),),
        links=("https://github.com/antrea-io/antrea/issues/6838",),
    ),
    Fault(
        id="lab.settings",
        component="kai-lab",
        title="lab.toml: unknown key or wrong value",
        cause="A setting is wrong: {why}",
        remedy=("Correct it in lab.toml (or unset the KAI_LAB_* variable that is named)", "kai-lab doctor"),
        signs=(
            said("is not a setting. known variables", r"(?P<why>KAI_LAB_\w{1,60}) is not a setting", EXACT),
            said("lab.toml is not toml", r"(?P<why>\S{0,200}lab\.toml is not TOML: .{1,200})", EXACT),
            said("no lab.toml", r"(?P<why>No lab\.toml .{0,200})", EXACT),
            said("and no lab.toml is there", at=EXACT),
            said("no check is named", r"(?P<why>no check is named .{1,100})", NAMED),
            said("must be a json object host -> mirror", at=NAMED),
        ),
        defaults={"why": "see the evidence"},
    ),
    Fault(
        id="lab.state-folder",
        component="kai-lab",
        title="The lab's state folder cannot be written / own record cannot be read",
        cause="The folder that keeps the lab's state cannot be used: no rights, no space, or a file in it was damaged.",
        remedy=(
            "df -h .",
            "ls -ld .lab",
            "KAI_LAB_STATE_DIR=/another/folder kai-lab run",
            "kai-lab down --all",
        ),
        signs=(
            said("the lab's state folder cannot be written", at=EXACT),
            said("the lab's own record cannot be read", at=EXACT),
            said("a lab's record cannot be read", at=EXACT),
            said("dagster's home cannot be prepared", at=EXACT),
            said("read-only file system", at=CLASS),
        ),
    ),
    Fault(
        id="lab.no-bundle",
        component="kai-lab",
        title="not an evidence bundle, bundle.json is missing",
        cause="The folder is no evidence bundle that this version can read.",
        remedy=("Name the folder that holds bundle.json and one folder per asset", "kai-lab judge BUNDLE"),
        signs=(
            said("not an evidence bundle", at=EXACT),
            said("expected a folder with bundle.json", at=EXACT),
        ),
    ),
    Fault(
        id="lab.manifest",
        component="kai-lab",
        title="A manifest is not YAML / is empty / holds something that is no Kubernetes object",
        cause="One of the lab's manifests cannot be used.",
        remedy=("Correct the file that is named; git diff manifests/ shows what was changed",),
        signs=(
            said("a manifest is not yaml", at=NAMED),
            said("a manifest is empty", at=NAMED),
            said("a manifest holds something that is no kubernetes object", at=NAMED),
            said("a manifest cannot be read", at=NAMED),
        ),
    ),
    Fault(
        id="rehearsal.server",
        component="rehearsal",
        title="the HTTP server ended while it started / no port to listen on / the server is still running after "
        "it was stopped",
        cause="The rehearsal's own API server did not start or stop as it should: no free port on 127.0.0.1, no "
        "space for its database, or a process that is stuck.",
        remedy=("kai-lab down", "kai-lab run", "Look at server.log in the lab's state folder (.lab/<lab>)"),
        signs=(
            said("the http server ended while it started", at=EXACT),
            said("no port to listen on", at=EXACT),
            said("the rehearsal's server is still running", at=EXACT),
            said("the rehearsal's server did not", at=NAMED),
        ),
        transient=True,
    ),
    Fault(
        id="rehearsal.unknown-fault",
        component="rehearsal",
        title="unknown fault ...; known: ...",
        cause="The rehearsal knows no fault or scenario of that name.",
        remedy=("kai-lab scenarios",),
        signs=(
            said("unknown fault", r"unknown fault .{1,200}; known: ", EXACT),
            said("unknown scenario", at=EXACT),
        ),
    ),
    Fault(
        id="lab.port-in-use",
        component="kai-lab",
        title="Port 3000 of 127.0.0.1 is in use",
        cause="Something listens already at port {port}, perhaps another Dagster UI.",
        remedy=("ss -ltnp 'sport = :{port}'", "kai-lab dev --port 3001"),
        signs=(
            said("of 127.0.0.1 is in use", r"Port (?P<port>\d{1,5}) of 127\.0\.0\.1 is in use", EXACT),
            said(
                "address already in use",
                r"(?:127\.0\.0\.1|localhost|0\.0\.0\.0)['\",: ]{1,5}(?P<port>\d{2,5}).{0,30}address already in use",
                CLASS,
            ),
            said("errno 98", at=CLASS),
        ),
    ),
    Fault(
        id="lab.tool-too-old",
        component="kai-lab",
        title="kind / helm is too old: the lab needs ... or newer",
        cause="The {tool} on the PATH is too old for the lab.",
        remedy=("{tool} version", "kai-lab doctor", "Install a newer {tool}"),
        signs=(said("is too old", r"\b(?P<tool>kind|helm|docker|kubectl) [\w+.-]{1,40} is too old", EXACT),),
        defaults={"tool": "tool"},
    ),
)
