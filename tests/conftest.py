"""Fixtures for all tests: implementations, instruction sets, poisoned memory, runs, a demo. Needs torch and numpy only."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from entformer.kernels import native

if TYPE_CHECKING:
    from entformer.checkpoint import LoadedRun, RunFolder
    from entformer.checkpoint.language_model import LoadedLM

M_PERTURB = -6  # glibc's mallopt: fill what malloc hands out
WORDS = ("<unk>", "the", "cat", "dog", "sat", "on", "mat", "and")  # of a tiny Hugging Face model
FILL_WITH_NANS = 0x100  # glibc writes the complement of the low byte: 0xff..., which is NaN in every floating-point type


@pytest.fixture(scope="session", autouse=True)
def fresh_compiler_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Uses an empty cache: torch.compile would reuse programs across processes and versions of our operators.

    It compiles in this process, without trying out instruction sets: a pool of processes costs more than it gains here.
    """
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path_factory.mktemp("inductor"))
    os.environ |= {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_VEC_ISA_OK": "1"}


def _need_kernels() -> None:
    """Skips the test if there is no compiler; fails it if there is one and the kernels do not load."""
    reason = native.load()
    if reason is None:
        return
    if native.compiler() is None:
        pytest.skip(f"no C++ kernels: {reason}")
    pytest.fail(f"no C++ kernels although there is a compiler: {reason}")


@pytest.fixture
def kernels() -> None:
    """Loads the C++ kernels."""
    _need_kernels()


@pytest.fixture(params=["cpu", "reference"])
def impl(request: pytest.FixtureRequest) -> str:
    """Each implementation by name."""
    name: str = request.param
    if name == "cpu":
        _need_kernels()
    return name


@pytest.fixture(params=["avx512", "avx2", "portable"])
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Forces each instruction set in turn."""
    yield from _forced_isa(request)


@pytest.fixture(params=["amx", "avx512_bf16"])
def half_isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Forces each instruction set that differs from AVX-512 in products of half precision alone."""
    yield from _forced_isa(request)


def _forced_isa(request: pytest.FixtureRequest) -> Iterator[str]:
    _need_kernels()
    before = native.isa()
    name: str = request.param
    if not native.set_isa(name):
        pytest.skip(f"this CPU does not support {name}")
    yield name
    native.set_isa(before)


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """Fills new memory with NaN, so that an element a kernel does not write, or reads too early, is noticed.

    glibc fills every block it allocates, scratch space of the kernels included. Elsewhere torch fills its own tensors.
    """
    c_library = ctypes.CDLL(None)
    if hasattr(c_library, "mallopt"):
        c_library.mallopt(M_PERTURB, FILL_WITH_NANS)
        yield
        c_library.mallopt(M_PERTURB, 0)
    else:
        before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = True
        yield
        torch.use_deterministic_algorithms(before[0])
        torch.utils.deterministic.fill_uninitialized_memory = before[1]


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Runs torch on one thread: small tensors gain nothing from more, and the test workers share the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def threads() -> Iterator[None]:
    """Restores the number of threads that the test sets."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A quick demo, run once for all test workers: its directory, whose name is not a plain word, and what it printed."""
    import fcntl

    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    directory, printed = shared / "demo" / "a: directory", shared / "demo.txt"
    with open(shared / "demo.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not printed.exists():
            done = subprocess.run(
                [sys.executable, "-m", "entformer.cli.main", "demo", "--quick", "--out", str(directory)],
                env={**os.environ, "PYTHONPATH": str(Path(native.__file__).parents[2]), "COLUMNS": "100"},
                capture_output=True,
                text=True,
                check=False,
            )
            assert (done.returncode, done.stderr) == (0, "")
            printed.write_text(done.stdout, encoding="utf-8")
    return directory, printed.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def make_run() -> "Callable[..., LoadedRun]":
    """Makes runs of untrained models with large projections, so that another alpha soon gives another translation."""
    from entformer.checkpoint import LoadedRun
    from entformer.models.config import Seq2SeqConfig
    from entformer.models.seq2seq import Seq2Seq
    from entformer.text.tokenizer import SubwordTokenizer

    words = "a man in an orange hat is looking at something . two dogs play with the red ball on green grass . Der Mann !"
    subwords = SubwordTokenizer.train([words] * 20, vocab_size=340)

    def make(*, info: dict[str, Any] | None = None, seed: int = 1, **config: Any) -> LoadedRun:
        torch.manual_seed(seed)
        sizes = {"vocab_size": subwords.size, "encoder_layers": 1, "decoder_layers": 2, "heads": 2, "width": 16, "hidden": 32}
        model = Seq2Seq(Seq2SeqConfig.from_dict({**sizes, **config}))
        with torch.no_grad():
            for _, _, attention in model.attention_layers():
                assert attention.in_proj_weight is not None
                attention.in_proj_weight *= 3.0
        return LoadedRun(
            model=model.eval(),
            subwords=subwords,
            source_language="en",
            target_language="de",
            info={"tokenized": False, "lowercase": False, **(info or {})},
            step=7,
        )

    return make


@pytest.fixture(scope="session")
def save_run() -> "Callable[[LoadedRun, Path], RunFolder]":
    """Writes a run directory as training does: all that `load_run` reads, with one checkpoint, the best."""
    from entformer.checkpoint import RunFolder, model_info, save_weights
    from entformer.files import write_json

    def save(run: "LoadedRun", path: Path) -> RunFolder:
        folder = RunFolder(path)
        folder.create()
        facts: Any = {"source_language": "en", "target_language": "de", **run.info, "data_fingerprint": "0"}
        write_json(folder.model, model_info(run.model.config, run.subwords, **facts))
        run.subwords.save(folder.subwords)
        weights = partial(_save_checkpoint, save_weights, run.model)
        folder.set_pointer("best", folder.save(run.step, weights, {"step": run.step}))
        return folder

    return save


@pytest.fixture(scope="session")
def make_lm() -> "Callable[..., LoadedLM]":
    """Makes untrained language models, in which another alpha soon gives another continuation."""
    from entformer.checkpoint.language_model import LoadedLM
    from entformer.models.lm import CausalLM
    from entformer.models.lm_config import LMConfig
    from entformer.text.documents import BpeTokenizer, ByteTokenizer

    words = "a man in an orange hat is looking at something . two dogs play with the red ball on green grass ."
    tokenizers = {"bpe": BpeTokenizer.train([words] * 20, vocab_size=340), "bytes": ByteTokenizer()}

    def make(*, tokenizer: str = "bpe", seed: int = 1, **config: Any) -> LoadedLM:
        torch.manual_seed(seed)
        own = tokenizers[tokenizer]
        sizes = {"layers": 2, "heads": 2, "width": 16, "hidden": 32, "attention": {"normalizer": "entmax", "alpha": "learned"}}
        model = CausalLM(LMConfig.from_dict({"vocab_size": own.size, **sizes, **config})).eval()
        return LoadedLM(model=model, tokenizer=own, context=32, step=7, info={})

    return make


@pytest.fixture(scope="session")
def save_lm() -> "Callable[[LoadedLM, Path], Path]":
    """Writes the run directory of a language model as training does, with one checkpoint, the best."""
    from entformer.checkpoint import RunFolder, save_weights
    from entformer.checkpoint.language_model import lm_info
    from entformer.files import write_json

    def save(run: "LoadedLM", path: Path) -> Path:
        folder = RunFolder(path)
        folder.create()
        write_json(folder.model, lm_info(run.model.config, run.tokenizer, context=run.context, data_fingerprint="0"))
        run.tokenizer.save(folder.subwords)
        weights = partial(_save_checkpoint, save_weights, run.model)
        folder.set_pointer("best", folder.save(run.step, weights, {"step": run.step}))
        return path

    return save


def _save_checkpoint(save_weights: Callable[..., None], model: torch.nn.Module, where: Path) -> None:
    save_weights(where / "model.safetensors", model)
    save_weights(where / "state.safetensors", torch.nn.Linear(1, 1))


@pytest.fixture(scope="session")
def tiny_llama() -> Callable[..., tuple[Any, Any]]:
    """Makes a converted Hugging Face decoder over eight words, and its tokenizer."""
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    from entformer import hf

    def make(layers: int = 2) -> tuple[Any, Any]:
        torch.manual_seed(0)
        words = {word: number for number, word in enumerate(WORDS)}
        inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
        inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        sizes = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": layers, "num_attention_heads": 4}
        config = transformers.LlamaConfig(vocab_size=len(words), num_key_value_heads=2, eos_token_id=None, **sizes)
        model = hf.sparsify(transformers.LlamaForCausalLM(config), alpha=1.5)
        return model, transformers.PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>")

    return make
