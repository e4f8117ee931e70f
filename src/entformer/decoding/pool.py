"""Beam search of batches, in this process or in others that each load the model.

Batches are made by one process whatever their number, so translations do not depend on it.
"""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import torch

from entformer.checkpoint import load_run
from entformer.decoding.beam import beam_search
from entformer.decoding.records import Hypothesis
from entformer.errors import ArgumentError, RunFailed
from entformer.models.seq2seq import Seq2Seq
from entformer.text.tokenizer import EOS, PAD


def search_batch(
    model: Seq2Seq, sources: list[list[int]], prefixes: list[list[int]], settings: dict[str, Any]
) -> list[list[Hypothesis]]:
    """Returns the translations of every source, ids without EOS; `settings` are those of `beam_search`."""
    longest = max(map(len, sources)) + 1
    padded = [[*ids, EOS, *([PAD] * (longest - len(ids) - 1))] for ids in sources]
    source = torch.tensor(padded, device=model.source_embedding.device)  # (B, S)
    training = model.training
    model.eval()
    try:
        return beam_search(model, source, source != PAD, prefix=prefixes, **settings)
    finally:
        model.train(training)


class SearchPool:
    """Processes that translate batches.

    Args:
        run, which: The weights, as in `load_run`.
        processes: How many.
        device: Of all of them; with "cuda" each has a GPU of its own.
        threads: Of each. Default: an equal share of the cores.
    """

    def __init__(
        self, run: Path | str, which: str | Path, processes: int, *, device: torch.device | str, threads: int | None = None
    ) -> None:
        self.run, self.which, self.processes = run, which, processes
        self.devices = [str(device)] * processes
        if str(device) == "cuda":
            if torch.cuda.device_count() < processes:
                raise ArgumentError(f"{processes} processes need {processes} GPUs; there are {torch.cuda.device_count()}.")
            self.devices = [f"cuda:{number}" for number in range(processes)]
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.threads = threads or max(1, cores // processes)

    @contextlib.contextmanager
    def start(
        self, settings: dict[str, Any]
    ) -> Iterator[Callable[[list[list[int]], list[list[int]]], Callable[[], list[list[Hypothesis]]]]]:
        """Starts the processes. Yields a function that sends them a batch and returns one that waits for its result."""
        context = multiprocessing.get_context("spawn")
        devices = context.SimpleQueue()
        for device in self.devices:
            devices.put(device)
        executor = ProcessPoolExecutor(
            self.processes, context, initializer=_load, initargs=(self.run, self.which, devices, self.threads, settings)
        )

        def submit(sources: list[list[int]], prefixes: list[list[int]]) -> Callable[[], list[list[Hypothesis]]]:
            try:
                future = executor.submit(_search, sources, prefixes)
            except BrokenProcessPool as err:
                raise _gone() from err
            return lambda: _result(future)

        try:
            yield submit
        finally:
            executor.shutdown(cancel_futures=True)


def _result(future: "Future[list[list[Hypothesis]]]") -> list[list[Hypothesis]]:
    try:
        return future.result()
    except BrokenProcessPool as err:
        raise _gone() from err


def _gone() -> RunFailed:
    return RunFailed(
        "a process that translates has ended by itself or was killed, perhaps for lack of memory; use fewer processes or "
        "smaller batches."
    )


# ---- in the processes ----------------------------------------------------------------------------------------------------

_loaded: dict[str, Any] = {}  # of this process: model and settings


def _load(run: Path | str, which: str | Path, devices: Any, threads: int, settings: dict[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the process that sends batches says what there is to say
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    torch.set_num_threads(threads)
    with warnings.catch_warnings():  # already shown
        warnings.simplefilter("ignore")
        _loaded["model"] = load_run(run, which, device=devices.get()).model
    _loaded["settings"] = settings


def _end_with(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


def _search(sources: list[list[int]], prefixes: list[list[int]]) -> list[list[Hypothesis]]:
    return search_batch(_loaded["model"], sources, prefixes, _loaded["settings"])
