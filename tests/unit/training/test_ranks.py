"""What a process says when it loses another."""

import pytest

from entformer.errors import RunFailed
from entformer.training.ranks import Ranks, lost_processes

RESET = "[/pytorch/third_party/gloo/pair.cc:537] Read error [127.0.0.1]:3969: Connection reset by peer. GLHF!"


def lose(message: str) -> None:
    ranks = Ranks("cpu")
    ranks.rank, ranks.size = 1, 2
    with lost_processes(ranks):
        raise RuntimeError(message)


@pytest.mark.parametrize(
    ("restarts", "remedy"),
    [
        ((), "run the same command again to resume, or add --max-restarts"),
        (("1", "3"), r"all processes are started again and resume from it \(restart 2 of 3\)"),
        (("3", "3"), "run the same command again to resume"),
    ],
)
def test_a_lost_process_is_told_with_what_happens_next(
    restarts: tuple[str, ...], remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in zip(("RESTART_COUNT", "MAX_RESTARTS"), restarts, strict=False):
        monkeypatch.setenv(f"TORCHELASTIC_{name}", value)
    expected = (
        rf"process 1 lost another process of the run \(connection reset by peer\)\. The last checkpoint is intact; {remedy}"
    )
    with pytest.raises(RunFailed, match=expected):
        lose(RESET)


def test_an_error_of_this_process_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match=r"^something else$"):
        lose("something else")
