"""Runs the tests of the Triton kernels in Triton's interpreter, in one process of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from entformer.bench.harness import installed_version
from entformer.kernels import triton_host

HERE = Path(__file__).parent
VERSION = tuple(int(part) for part in (installed_version("triton") or "0.0").split(".")[:2])
FILES = sorted(str(path) for path in HERE.glob("test_triton_*.py") if path != Path(__file__))


@pytest.mark.skipif(not triton_host.installed(), reason="Triton is not installed")
@pytest.mark.skipif(VERSION < (3, 7), reason="the interpreter of Triton 3.6 cannot count loops with numpy 2")
@pytest.mark.skipif(triton_host.interpreted(), reason="already in the interpreter")
def test_in_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *FILES]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout.splitlines()[-1]
