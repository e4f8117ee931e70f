"""Runs the tests of the Triton kernels in Triton's interpreter, each file in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from entformer.kernels import triton_host

HERE = Path(__file__).parent
FILES = sorted(path.name for path in HERE.glob("test_triton_*.py") if path != Path(__file__))


@pytest.mark.skipif(not triton_host.installed(), reason="Triton is not installed")
@pytest.mark.skipif(triton_host.interpreted(), reason="already in the interpreter")
@pytest.mark.parametrize("name", FILES)
def test_in_the_interpreter(name: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(HERE / name)]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout.splitlines()[-1]
