"""`entformer convert`: turns sharded checkpoints of FSDP into the usual files of a run directory."""

import typer

from entformer.cli.options import Run


def convert(run: Run) -> None:
    """Convert the sharded checkpoints of a run that FSDP trained and that was stopped, so that other commands can load them.

    Training converts them itself when it is complete. A converted run can still be resumed, by any number of processes.
    """
    from entformer.checkpoint.folder import RunFolder, refuse_pickled
    from entformer.checkpoint.sharded import convert as convert_checkpoint

    refuse_pickled(run)
    folder = RunFolder(run)
    folder.check()
    with folder.locked():
        sharded = [checkpoint for checkpoint in folder.complete() if checkpoint.sharded]
        for checkpoint in sharded:
            convert_checkpoint(folder, checkpoint)
            typer.echo(f"{checkpoint.path}: model.safetensors and state.safetensors")
    if not sharded:
        typer.echo(f"{run} has no sharded checkpoint; nothing to do.")
