"""The simulated components of the rehearsal as a process of their own, on whatever API server they are given.

``python -m kai_lab_pipeline_tests.conformance.node URL STATE_FOLDER``, with the token in NODE_TOKEN: command lines can
be read by everybody on the machine.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path

from kai_lab_pipeline.rehearsal.components import run_components

TOKEN_VARIABLE = "NODE_TOKEN"
OPTIONS = {
    "name": "conformance",
    "webhook_url_mode": True,  # a real API server cannot reach a simulated service
    "kube_controllers": False,  # the real ones run
}


def main(url: str, state: Path) -> None:
    """Run until ended."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    asyncio.run(run_components(url, os.environ[TOKEN_VARIABLE], state, OPTIONS))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
