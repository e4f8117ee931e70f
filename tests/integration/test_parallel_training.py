"""Two processes under each engine take the same steps as one process with the same global batch."""

import dataclasses
import itertools
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from entformer.checkpoint import RunFolder
from entformer.checkpoint.load import load_run
from entformer.checkpoint.sharded import convert, load_shards, read_shards
from entformer.data.prepared import Prepared
from entformer.decoding.translate import Translator
from entformer.errors import DataError
from entformer.tasks import train as train_recipe
from entformer.tasks.translation import Translation
from entformer.training.metrics import metrics_of
from entformer.training.ranks import Ranks
from entformer.training.recipe_file import load_recipe

from .conftest import Entformer, write_text
from .parallel_cases import CASES, RESUMED, attend, train

HERE = Path(__file__).resolve().parent


def write_recipe(path: Path, **training: Any) -> Path:
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "heads": 2, "width": 16, "hidden": 32, "dropout": 0.0}
    text = {"train": ["text/train.xx", "text/train.yy"], "valid": ["text/valid.xx", "text/valid.yy"], "vocab_size": 300}
    steps = {"steps": 12, "tokens": 56, "lr": 0.002, "warmup": 2, "validate_every": 4, "log_every": 1, "log_batches": True}
    recipe = {
        "name": "tiny",
        "data": {**text, "source_language": "xx", "target_language": "yy"},
        "model": sizes,
        "training": {**steps, "average_count": 2, "keep_last": 3, **training},
    }
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the results of both processes in every case, all from one start of the two processes."""
    out = tmp_path_factory.mktemp("pairs")
    write_text(out / "text")
    write_recipe(out / "recipe.yaml")
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    source = {"PYTHONPATH": str(HERE.parents[1] / "src"), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(HERE / "parallel_cases.py"), str(out)],
            env={**os.environ, **source, **shared, "RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)
    return out


def load(out: Path, name: str) -> list[dict[str, Any]]:
    return [torch.load(out / f"{name}.{rank}", weights_only=True) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_processes_take_the_steps_of_one(name: str, pairs: Path) -> None:
    alone = train(dataclasses.replace(CASES[name], fails=False), Ranks("cpu"))
    first, second = load(pairs, name)
    assert first["loss"].shape == (CASES[name].steps,)
    assert first["loss"][-1] < first["loss"][0]
    # Sums of float32 in another order; Adam's division by small moments amplifies the difference in the first steps.
    for result in ("loss", "alphas"):
        torch.testing.assert_close(first[result], alone[result], rtol=0.0, atol=1e-5)
    assert not torch.equal(alone["alphas"][0], alone["alphas"][-1])
    for key, value in first.items():  # both processes hold the same weights and alphas, bitwise
        assert key == "split" or torch.equal(value, second[key]), key
    assert (first["split"], second["split"]) == (0, int(CASES[name].fails))


def lines(run: Path, kind: str) -> list[dict[str, Any]]:
    return [line for line in metrics_of(run / "metrics.jsonl") if line["kind"] == kind]


@pytest.fixture(scope="module")
def unbroken(pairs: Path) -> Path:
    """One process with the global batch of two."""
    train_recipe(write_recipe(pairs / "one.yaml", accumulate=2), pairs / "one", threads=1, quiet=True)
    return pairs / "one"


@pytest.mark.slow
@pytest.mark.parametrize("parallel", RESUMED)
def test_a_run_resumes_with_another_number_of_processes(parallel: str, pairs: Path, unbroken: Path) -> None:
    run = pairs / parallel
    log = (run / "train.log").read_text(encoding="utf-8")
    assert "processes: 2 before, 1 now" in log
    assert "processes: 1 before, 2 now" in log
    assert "batches in a step" not in log  # one process accumulates two batches, so that steps stay what they were
    for kind, names in (("train", ("loss", "grad_norm")), ("valid", ("loss", "accuracy"))):
        for ours, theirs in zip(lines(run, kind), lines(unbroken, kind), strict=True):
            assert ours["step"] == theirs["step"]
            assert [ours[name] for name in names] == pytest.approx([theirs[name] for name in names], abs=1e-5)
    seen, expected = (
        [sorted(itertools.chain.from_iterable(line["examples"])) for line in lines(one, "batches")] for one in (run, unbroken)
    )
    assert seen == expected  # every batch once, in its step
    assert {one.sharded for one in RunFolder(run).complete()} == {False}  # converted at the end
    assert (run / "averaged" / "model.safetensors").is_file()


@pytest.mark.slow
def test_a_sharded_checkpoint_is_converted_and_translates_as_before(pairs: Path, entformer: Entformer, tmp_path: Path) -> None:
    run = shutil.copytree(pairs / "fsdp-stopped", tmp_path / "run")
    folder = RunFolder(run)
    assert {one.sharded for one in folder.complete()} == {True}
    with pytest.raises(DataError, match=r"is sharded; convert it first with: entformer convert"):
        Translator(run)
    assert entformer("convert", run).returncode == 0
    (checkpoint,) = folder.complete()
    assert sorted(path.name for path in checkpoint.path.iterdir()) == sorted(
        ["DONE", "model.safetensors", "state.json", "state.safetensors"]
    )
    checkpoint.verify()
    task = Translation(load_recipe(run / "recipe.yaml"), Prepared.open(folder.prepared))
    task.evaluate(load_run(run).model, tmp_path / "again", settings={"beam": 1})
    assert (tmp_path / "again.txt").read_bytes() == (run / "validations" / "4.txt").read_bytes()
    assert "nothing to do" in entformer("convert", run).stdout


@pytest.mark.slow
def test_damaged_shards_are_noticed_and_pickled_ones_are_refused(pairs: Path, tmp_path: Path) -> None:
    folder = RunFolder(shutil.copytree(pairs / "fsdp-stopped", tmp_path / "run"))
    (checkpoint,) = folder.complete()
    shard = min(checkpoint.path.glob("shard-*"))
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DataError, match=f"{shard.name} is damaged: its content does not match its checksum"):
        convert(folder, checkpoint)
    (checkpoint.path / ".metadata").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    for read in (read_shards, lambda own: load_shards(own, {})):
        with pytest.raises(DataError, match="pickled metadata"):
            read(checkpoint)


@pytest.mark.slow
def test_attention_to_keys_of_two_processes_is_attention_to_all(pairs: Path) -> None:
    for rank in range(2):
        found = torch.load(pairs / f"attention.{rank}", weights_only=True)
        torch.testing.assert_close(found, attend(), rtol=1e-9, atol=1e-9)
