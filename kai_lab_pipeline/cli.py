"""The command line `kai-lab`. Only how commands are called stands here; what they do is in `commands`.

Everything heavy is imported by the command that needs it: `--help` must come at once.
"""

from __future__ import annotations

import io
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import click

from kai_lab_pipeline import __version__
from kai_lab_pipeline.lab.errors import LabError, WrongUse

BACKENDS = ("rehearsal", "kind", "context")
INTERRUPTED = 130
EXIT_CODES = "Exit codes: 0 every claim held, 1 a claim is broken, 2 wrong use or settings, 3 infrastructure failed."


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXIT_CODES)
@click.version_option(__version__, prog_name="kai-lab")
def cli() -> None:
    """The KAI Scheduler and HAMi GPU sharing lab: build it, judge it, and read exactly where it stops."""


@cli.command()
@click.option("--backend", type=click.Choice(BACKENDS), help="Where the cluster comes from (default: lab.toml).")
@click.option(
    "--select",
    multiple=True,
    metavar="ASSET[+]",
    help="Only this asset; ASSET+ adds all its descendants; unsynced: what is not in sync.",
)
@click.option("--scenario", metavar="NAME", help="Rehearse a fault, see 'kai-lab scenarios' (backend rehearsal only).")
@click.option("--json", "as_json", is_flag=True, help="Print the claims as JSON on stdout; progress goes to stderr.")
@click.option("--report-dir", type=click.Path(file_okay=False, path_type=Path), help="Also put the report here.")
def run(
    backend: str | None, select: tuple[str, ...], scenario: str | None, as_json: bool, report_dir: Path | None
) -> None:
    """Materialise the lab, or some of its assets, and judge it."""
    from kai_lab_pipeline.commands.run import run_command

    names = [name for part in select for name in part.split(",") if name]
    _end(lambda: run_command(backend=backend, scenario=scenario, select=names, as_json=as_json, report_dir=report_dir))


@cli.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the claims as JSON.")
def judge(bundle: Path, as_json: bool) -> None:
    """Judge an evidence bundle offline."""
    from kai_lab_pipeline.commands.judge import judge_command

    _end(lambda: judge_command(bundle, as_json=as_json))


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print the checks as JSON.")
@click.argument("names", nargs=-1, metavar="[ASSET | ASSET.CHECK]...")
def check(names: tuple[str, ...], as_json: bool) -> None:
    """Execute checks alone against the live cluster (all of them by default); build nothing."""
    from kai_lab_pipeline.commands.check import check_command

    _end(lambda: check_command(names, as_json=as_json))


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print the status as JSON.")
def status(as_json: bool) -> None:
    """What is built, whether it is in sync, and whether the cluster is there."""
    from kai_lab_pipeline.commands.status import status_command

    _end(lambda: status_command(as_json=as_json))


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print the claims as JSON.")
def report(as_json: bool) -> None:
    """Judge each asset's newest evidence and write the report anew."""
    from kai_lab_pipeline.commands.report import report_command

    _end(lambda: report_command(as_json=as_json))


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print the scenarios as JSON.")
def scenarios(as_json: bool) -> None:
    """The faults that 'kai-lab run --scenario NAME' can rehearse."""
    from kai_lab_pipeline.commands.scenarios import scenarios_command

    _end(lambda: scenarios_command(as_json=as_json))


@cli.command()
@click.option("--all", "everything", is_flag=True, help="Every lab of this project, with its evidence and reports.")
def down(everything: bool) -> None:
    """Take away what was made, and verify that nothing is left."""
    from kai_lab_pipeline.commands.down import down_command

    _end(lambda: down_command(everything=everything))


@cli.command()
@click.argument("file", required=False, metavar="[FILE|BUNDLE|-]")
@click.option("--json", "as_json", is_flag=True, help="Print the causes as JSON.")
def explain(file: str | None, as_json: bool) -> None:
    """An error text, log, object or bundle in; cause, remedy and whether it passes by itself out."""
    from kai_lab_pipeline.commands.explain import explain_command

    _end(lambda: explain_command(file, as_json=as_json))


@cli.command()
@click.option("--backend", type=click.Choice(BACKENDS), help="Only for this backend.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(backend: str | None, as_json: bool) -> None:
    """What this machine lacks for the lab, and the command that fixes it. Nothing is touched."""
    from kai_lab_pipeline.commands.doctor import doctor_command

    _end(lambda: doctor_command(backend=backend, as_json=as_json))


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print the versions as JSON.")
def versions(as_json: bool) -> None:
    """Which chart versions are pinned, new, left out (and why), or not understood."""
    from kai_lab_pipeline.commands.versions import versions_command

    _end(lambda: versions_command(as_json=as_json))


@cli.command()
@click.option("--add", multiple=True, metavar="COMPONENT=VERSION", help="Also judge this version set (repeatable).")
@click.option("--chart", multiple=True, metavar="COMPONENT=CHART", help="Chart folder or reference to judge.")
@click.option("--image", multiple=True, metavar="COMPONENT=IMAGE", help="Image (repository:tag, or a tag) to judge.")
@click.option("--json", "as_json", is_flag=True, help="Print the matrix and the summary as JSON.")
def nightly(add: tuple[str, ...], chart: tuple[str, ...], image: tuple[str, ...], as_json: bool) -> None:
    """Look for new versions, build and judge a lab for each, clean up, and say what changed."""
    from kai_lab_pipeline.commands.nightly import nightly_command

    _end(lambda: nightly_command(add=add, chart=chart, image=image, as_json=as_json))


@cli.command()
@click.option("--port", type=click.IntRange(1, 65535), default=3000, show_default=True)
def dev(port: int) -> None:
    """The Dagster UI on 127.0.0.1 with this project loaded."""
    from kai_lab_pipeline.commands.dev import dev_command

    _end(lambda: dev_command(port))


def _end(command: Callable[[], int]) -> None:
    """Run a command and exit with its code; errors people can act on are printed as such, never as a traceback."""
    from kai_lab_pipeline.settings import SettingsError

    try:
        code = command()
    except (LabError, SettingsError) as error:
        from kai_lab_pipeline.commands.common import say_error

        code = say_error(error)
    sys.exit(code)


def main() -> None:
    """Entry point: click's own usage errors exit with 2, an interrupt with 130."""
    if threading.current_thread() is threading.main_thread():
        # SIGTERM ends as Ctrl-C does: children ended, history kept. A script's background job has SIGINT ignored, and
        # Dagster makes of SIGTERM whatever SIGINT is.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Evidence is in any language and may hold half a character: what the terminal cannot show is replaced.
        sys.stdout.reconfigure(errors="replace")
    try:
        cli.main(prog_name="kai-lab", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(WrongUse.exit_code)
    except (KeyboardInterrupt, click.exceptions.Abort):  # click makes the second of the first
        click.echo("Interrupted; the next run goes on from here.", err=True)
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
