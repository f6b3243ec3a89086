"""The documentation site, built once a session as it is published."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Site:
    """folder: the built site. pages: its pages, as paths in the folder. said: what MkDocs wrote on standard error."""

    folder: Path
    code: int
    said: str

    @property
    def pages(self) -> list[str]:
        """404.html is no page of ours."""
        found = (page.relative_to(self.folder).as_posix() for page in self.folder.rglob("*.html"))
        return sorted(page for page in found if page != "404.html")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    missing = [name for name in ("mkdocs", "material", "mkdocstrings") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"there is no {missing[0]} here, so the site cannot be built: install the extra docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "NO_COLOR": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, timeout=300)
    return Site(folder, done.returncode, done.stdout + done.stderr)
