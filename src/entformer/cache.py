"""The user's cache folder. In: the environment. Out: a path, whether it is there or not.

`$ENTFORMER_CACHE`, else `$XDG_CACHE_HOME/entformer`, else `~/.cache/entformer`; where the user has no home (a service, a
container with a bare user number), a folder of the user's own among the temporary files.
"""

import os
import tempfile
from pathlib import Path


def cache_root() -> Path:
    """Where compiled kernels and downloads are kept."""
    if explicit := os.environ.get("ENTFORMER_CACHE"):
        return Path(explicit).absolute()
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base).absolute() / "entformer"
    try:
        return Path.home() / ".cache" / "entformer"
    except RuntimeError:  # neither HOME nor an entry in the list of users
        return temporary_root()


def temporary_root() -> Path:
    """A folder of the user's own among the temporary files. Whoever uses it makes sure that it is the user's."""
    user = os.getuid() if hasattr(os, "getuid") else "user"
    return Path(tempfile.gettempdir()) / f"entformer-{user}"
