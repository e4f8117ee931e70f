"""`entformer generate`: continues a prompt with a trained language model."""

import contextlib
import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from entformer.cli.options import Checkpoint, Device, Run, Threads

if TYPE_CHECKING:
    import torch

    from entformer.checkpoint.language_model import LoadedLM
    from entformer.decoding.sampling import Sampling


def generate(
    run: Run,
    prompt: Annotated[str | None, typer.Option(help="Text to continue.", show_default="typed lines, or standard input")] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Maximum number of tokens.")] = 100,
    samples: Annotated[int, typer.Option(min=1, help="Number of continuations.")] = 1,
    temperature: Annotated[float, typer.Option(min=0.0, help="Divides the scores; 0: the most probable token.")] = 0.8,
    entmax: Annotated[
        float, typer.Option(metavar="ALPHA", min=1.0, help="Sample from alpha-entmax; 1 is softmax, 1.5 drops unlikely tokens.")
    ] = 1.0,
    top_k: Annotated[int | None, typer.Option(min=1, help="Sample from the k most probable tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Sample from the most probable tokens that sum to p.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Drop tokens below this share of the highest probability.")] = None,
    seed: Annotated[int, typer.Option(help="Random seed; the same seed gives the same text.")] = 1,
    checkpoint: Checkpoint = "best",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per continuation.")] = False,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Continue a text with a language model, token by token.

    Without --prompt each line that is typed, or read from standard input, is a prompt.
    """
    import torch

    from entformer.checkpoint.language_model import load_language_model
    from entformer.decoding.sampling import Sampling

    if threads is not None:
        torch.set_num_threads(threads)
    sampling = Sampling(temperature, entmax, top_k, top_p, min_p)
    loaded = load_language_model(run, checkpoint, device=device)
    generator = torch.Generator().manual_seed(seed)
    if prompt is not None:
        _continue(loaded, prompt, tokens, samples, sampling, generator, as_json)
        return
    typed = sys.stdin.isatty()
    if typed:
        print("Type the beginning of a text; end with Ctrl-D.", file=sys.stderr)
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            _continue(loaded, input("> " if typed else ""), tokens, samples, sampling, generator, as_json)


def _continue(
    loaded: "LoadedLM",
    prompt: str,
    count: int,
    samples: int,
    sampling: "Sampling",
    generator: "torch.Generator",
    as_json: bool,
) -> None:
    """Prints continuations, each token as soon as it is there."""
    from entformer.decoding.sampling import generate_tokens
    from entformer.text.tokenizer import BOS, EOS

    ids = [BOS, *loaded.tokenizer.encode(prompt)]
    for number in range(samples):
        if number and not as_json:
            print("---")
        found: list[int] = []
        shown = ""
        for token in generate_tokens(loaded.model, ids, count, sampling, eos=EOS, generator=generator):
            found.append(token)
            if not as_json:
                text = loaded.tokenizer.decode([*ids, *found])
                if text.startswith(shown) and not text.endswith("\ufffd"):  # a character whose last byte is not there yet
                    print(text[len(shown) :], end="", flush=True)
                    shown = text
        if as_json:
            start = len(loaded.tokenizer.decode(ids))
            text = loaded.tokenizer.decode([*ids, *found])[start:]
            print(json.dumps({"prompt": prompt, "text": text, "tokens": len(found)}, ensure_ascii=False))
        else:
            print(loaded.tokenizer.decode([*ids, *found])[len(shown) :])
