"""`--nproc N`: starts a command in N processes, as `torchrun --nproc-per-node N -m entformer ...` does."""

import signal
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from entformer.errors import RunFailed

Processes = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Start N processes on this machine, as torchrun does.", show_default="1")
]
MaxRestarts = Annotated[
    int, typer.Option(min=0, metavar="K", help="With --nproc: how often all processes are started again when one is gone.")
]


def launch(processes: int, arguments: Sequence[str], *, max_restarts: int = 0) -> None:
    """Runs `python -m entformer` with these arguments in several processes and waits for them.

    Raises:
        typer.Exit: With the exit code of the process that failed first, or of the signal that ended them.
    """
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    options = ["--standalone", "--nproc-per-node", str(processes), "--max-restarts", str(max_restarts)]
    try:
        run.run(run.parse_args([*options, "-m", "entformer", *arguments]))
    except SignalException as err:
        number = signal.Signals(err.sigval)
        print(f"entformer: stopped by {number.name}; run the same command again to resume.", file=sys.stderr)
        raise typer.Exit(128 + number) from err
    except ChildFailedError as err:
        rank, failure = err.get_first_failure()
        if failure.exitcode < 0:
            killed = signal.Signals(-failure.exitcode).name
            tried = f" after {max_restarts} restart{'s' * (max_restarts > 1)}" if max_restarts else ""
            raise RunFailed(
                f"process {rank} was ended by {killed}{tried}. The last checkpoint is intact; run the same command again to "
                "resume, or add --max-restarts."
            ) from err
        raise typer.Exit(failure.exitcode) from err  # it has said why


def own_arguments() -> list[str]:
    """Returns the arguments of this command for its processes: all but those of `launch`."""
    kept: list[str] = []
    rest = iter(sys.argv[1:])
    for argument in rest:
        name, separator, _ = argument.partition("=")
        if name not in ("--nproc", "--max-restarts"):
            kept.append(argument)
        elif not separator:
            next(rest, None)
    return kept
