"""The user's cache directory: `$ENTFORMER_CACHE`, else `$XDG_CACHE_HOME/entformer`, else `~/.cache/entformer`.

Users without a home directory (services, containers with a bare user number) get one among the temporary files.
"""

import os
import tempfile
from pathlib import Path


def cache_root() -> Path:
    """Returns the directory of compiled kernels and downloads, which may not exist yet."""
    if explicit := os.environ.get("ENTFORMER_CACHE"):
        return Path(explicit).absolute()
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base).absolute() / "entformer"
    try:
        return Path.home() / ".cache" / "entformer"
    except RuntimeError:  # neither HOME nor an entry in the list of users
        return temporary_root()


def temporary_root() -> Path:
    """Returns a directory among the temporary files. Callers must check that it belongs to the user."""
    user = os.getuid() if hasattr(os, "getuid") else "user"
    return Path(tempfile.gettempdir()) / f"entformer-{user}"
