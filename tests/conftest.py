"""Fixtures every tier shares: each implementation, each instruction set, memory that is never clean by luck, a small run."""

import ctypes
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from entformer.checkpoint import LoadedRun
from entformer.kernels import native
from entformer.models.config import Seq2SeqConfig
from entformer.models.seq2seq import Seq2Seq
from entformer.text.tokenizer import SubwordTokenizer

M_PERTURB = -6  # glibc's mallopt: fill what malloc hands out
FILL_WITH_NANS = 0x100  # glibc writes the complement of the low byte: 0xff..., which is NaN in every floating-point type


@pytest.fixture(scope="session", autouse=True)
def fresh_compiler_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """torch.compile keeps what it compiled between processes, also across versions of our operators."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path_factory.mktemp("inductor"))


def _need_kernels() -> None:
    """A machine without a compiler cannot test the kernels; a machine with one must, so a broken build fails the tests."""
    why_not = native.load()
    if why_not is None:
        return
    if native.compiler() is None:
        pytest.skip(f"the C++ kernels are not here: {why_not}")
    pytest.fail(f"the C++ kernels are not here although there is a compiler: {why_not}")


@pytest.fixture
def kernels() -> None:
    """The C++ kernels are loaded."""
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
    """Each instruction set in turn, forced."""
    _need_kernels()
    before = native.isa()
    name: str = request.param
    if not native.set_isa(name):
        pytest.skip(f"this CPU cannot run {name}")
    yield name
    native.set_isa(before)


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """Fresh memory is full of NaN, so an element that a kernel forgets to write, or reads too early, shows.

    glibc can fill every block it hands out, scratch inside the kernels included. Elsewhere torch fills its own tensors.
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
    """Small tensors gain nothing from threads, and on a busy machine every barrier waits for a core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def threads() -> Iterator[None]:
    """The test sets torch's number of threads itself; it is put back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def make_run() -> Callable[..., LoadedRun]:
    """Runs of untrained models whose heads matter: their maps are large, so another alpha soon means another translation."""
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
