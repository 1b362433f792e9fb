"""What a git checkout knows of releases, as it is now: nothing is fetched, nothing in it is touched."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from kai_lab_pipeline.lab.errors import LabError

TIMEOUT_S = 20.0
STEP = "Name a clone of k8s-test-infra (KAI_LAB_IMAGE_CHECKOUT), and run `git fetch --tags` in it."


def git_tags(checkout: Path) -> Sequence[str]:
    """Tag names. Raises LabError for what is no checkout."""
    return _git(checkout, "for-each-ref", "--format=%(refname:strip=2)", "refs/tags").split()


def git_blobs(checkout: Path, refs: Sequence[str], path: str) -> dict[str, str | None]:
    """The object id of a file at each ref; None where the ref or the file is not there. Raises LabError."""
    asked = "".join(f"{ref}:{path}\n" for ref in refs)
    answers = _git(checkout, "cat-file", "--batch-check=%(objectname) %(objecttype)", stdin=asked).splitlines()
    # Of what is not there it says "<asked for> missing", or "ambiguous".
    found = [answer.split(" ")[0] if answer.endswith(" blob") else None for answer in answers]
    return dict(zip(refs, found, strict=True))


def _git(checkout: Path, *arguments: str, stdin: str = "") -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(checkout), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
            env=os.environ | {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", "GIT_NO_LAZY_FETCH": "1"},
        )
    except FileNotFoundError as error:
        what = "The checkout's tags could not be read: git is not installed."
        raise LabError(what, where=str(checkout), next_step="Install git, or leave the checkout out.") from error
    except subprocess.TimeoutExpired as error:
        what = f"The checkout's tags could not be read in {TIMEOUT_S:g} s."
        raise LabError(what, where=str(checkout), next_step=STEP, transient=True) from error
    if done.returncode != 0:
        what = "The checkout's tags could not be read."
        raise LabError(what, where=str(checkout), seen=done.stderr.strip()[-300:], next_step=STEP)
    return done.stdout
