"""The explorer as a FastAPI application: one page, a JSON API, its OpenAPI description.

Requests contain text and numbers only. The run is loaded once, before the first request; no request touches the disk.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from entformer import __version__
from entformer.analysis.training_text import TrainingText
from entformer.checkpoint import LoadedRun, RunFolder, load_run
from entformer.checkpoint.language_model import LoadedLM, is_language_model, load_language_model
from entformer.errors import ArgumentError
from entformer.explore.lm_engine import LMEngine
from entformer.explore.messages import (
    AttentionAnswer,
    AttentionRequest,
    ErrorResponse,
    Health,
    ModelFacts,
    TranslateAnswer,
    TranslateRequest,
)
from entformer.explore.model_queue import Deadline, ModelQueue, Refused
from entformer.explore.page import explorer_page
from entformer.explore.security import LOOPBACK, SecurityMiddleware
from entformer.explore.training import TrainingAnswer, read_training
from entformer.explore.translation_engine import TranslationEngine

if TYPE_CHECKING:
    from entformer.explore.text_engine import TextEngine

MOST_TOKENS = 4096  # of a text, whatever the user allows: attention is quadratic
SENTENCE_TOKENS, TEXT_TOKENS = 100, 512  # of a sentence to translate, and of a text to continue, unless the user sets it

DESCRIPTION = """Translate a sentence or continue a text with a trained model, return the weights of every attention head, and
change the alpha of some heads. Nothing is stored between requests. A failed request returns an error message in `detail`."""
ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorResponse, "description": "The request cannot be read, or is for another host"},
    408: {"model": ErrorResponse, "description": "The request did not arrive in time"},
    413: {"model": ErrorResponse, "description": "The request is too large"},
}
MODEL_ERRORS: dict[int | str, dict[str, Any]] = {
    **ERRORS,
    422: {"model": ErrorResponse, "description": "Invalid request: too long, out of range, or no such head"},
    503: {"model": ErrorResponse, "description": "The model is busy; try again in a moment"},
    504: {"model": ErrorResponse, "description": "The request took too long and was stopped"},
}


def create_app(
    run: Path | str | LoadedRun | LoadedLM | tuple[Any, Any] | None,
    *,
    which: str | Path = "best",
    name: str | None = None,
    device: torch.device | str = "cpu",
    max_tokens: int | None = None,
    timeout: float = 30.0,
    waiting: int = 100,
    hosts: Sequence[str] = LOOPBACK,
    examples: Sequence[str] = (),
    folder: Path | str | None = None,
    training_text: TrainingText | None = None,
) -> FastAPI:
    """Creates the explorer of one run, to run on any ASGI server or to mount into another application.

    Args:
        run: A run directory, a loaded run of either task, or a pair of a Hugging Face language model and its tokenizer. Do
            not train the model meanwhile. None shows only the training of `folder`, which has no checkpoint yet.
        which: The weights, as in `load_run`; ignored if the run is loaded.
        name: Shown on the page; by default the directory's name.
        device: The device to load a run directory to.
        max_tokens: The maximum number of subwords of a sentence; by default 100, and 512 for a model that continues text.
        timeout: Seconds for a request, waiting included.
        waiting: How many requests may wait for the model; more are refused at once.
        hosts: Allowed values of the Host header, without port. ["*"] allows any: needed where others reach the app by its
            name, and unsafe for one that only this machine should use.
        examples: Example sentences on the page.
        folder: The directory of a loaded run, to show how its alphas were learned; ignored if `run` is a directory.
        training_text: What a run that translates was trained on, to mark words that it has not seen.
    """
    if isinstance(run, Path | str):
        folder, name = run, name or Path(run).resolve().name
        run = (load_language_model if is_language_model(Path(run)) else load_run)(run, which, device=device)
    if max_tokens is None:
        max_tokens = SENTENCE_TOKENS if isinstance(run, LoadedRun) else TEXT_TOKENS
    if not 1 <= max_tokens <= MOST_TOKENS:
        raise ArgumentError(f"max_tokens={max_tokens} must be between 1 and {MOST_TOKENS}.")
    if not 0 < timeout < float("inf"):
        raise ArgumentError(f"timeout={timeout} must be a positive number of seconds.")
    if waiting < 1:
        raise ArgumentError(f"waiting={waiting} must be at least 1.")
    if isinstance(hosts, str) or not hosts:
        raise ArgumentError('hosts must be a list of names, such as ["localhost"], or ["*"] for any.')
    name = name or "this model"
    known = None if folder is None else RunFolder(Path(folder))
    common: dict[str, Any] = {"name": name, "max_tokens": max_tokens, "seconds": timeout, "examples": examples}
    engine: TranslationEngine | TextEngine | None = None
    if run is None:
        pass
    elif isinstance(run, tuple):
        from entformer.explore import hf_engine

        engine = hf_engine.HfEngine(*run, **common)
    elif isinstance(run, LoadedLM):
        engine = LMEngine(run, **common, folder=known)
    else:
        engine = TranslationEngine(run, **common, folder=known, training_text=training_text)
    queue = ModelQueue(seconds=timeout, places=waiting)
    page, policy = explorer_page(name)

    app = FastAPI(
        title="entformer explore",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,  # its scripts are loaded from another server
        redoc_url=None,
    )
    app.add_middleware(SecurityMiddleware, hosts=hosts, seconds=timeout)
    _add_error_handlers(app)

    def loaded() -> "TranslationEngine | TextEngine":
        if engine is None:
            raise Refused(503, f"{name} has no checkpoint yet; start the explorer again after the first validation.")
        return engine

    async def answer(request: Request, work: Callable[[Deadline], BaseModel]) -> Response:
        # Serialized in the thread too: a large response must not block the event loop.
        text = await queue.run(lambda deadline: work(deadline).model_dump_json().encode(), request.is_disconnected)
        return Response(text, media_type="application/json")

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def show_page() -> HTMLResponse:
        return HTMLResponse(page, headers={"Content-Security-Policy": policy})

    @app.get("/api/health", response_model=Health, responses=ERRORS, summary="Is the server running?")
    async def health() -> Health:
        """Returned at once, even while the model is running."""
        return Health(waiting=queue.waiting)

    @app.get("/api/model", response_model=ModelFacts, responses=MODEL_ERRORS, summary="The model, its heads, and the limits")
    async def model() -> ModelFacts:
        """The heads, their trained alphas, and the limits of a request."""
        return loaded().facts

    @app.get("/api/training", response_model=TrainingAnswer, responses=ERRORS, summary="Losses and alphas so far")
    def training() -> TrainingAnswer:
        """The course of training, read again for every request; without entries if the run directory is not known."""
        return TrainingAnswer() if known is None else read_training(known)

    @app.post(
        "/api/translate",
        response_model=TranslateAnswer,
        responses=MODEL_ERRORS,
        summary="Translate a sentence, or continue a text",
    )
    async def translate(body: TranslateRequest, request: Request) -> Response:
        """The n best translations or continuations, optionally with other alphas for some heads."""
        return await answer(request, lambda deadline: loaded().translate(body, deadline))

    @app.post("/api/attention", response_model=AttentionAnswer, responses=MODEL_ERRORS, summary="Weights of every head")
    async def attention(body: AttentionRequest, request: Request) -> Response:
        """The weights of every head on the best translation or a given target, and the probability of each token."""
        return await answer(request, lambda deadline: loaded().attention(body, deadline))

    return app


def _add_error_handlers(app: FastAPI) -> None:
    """Returns every error in the same form: a message in `detail`."""

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, err: RequestValidationError) -> JSONResponse:
        return _error_response(422, _validation_message(err))

    @app.exception_handler(ArgumentError)
    async def impossible(_: Request, err: ArgumentError) -> JSONResponse:
        return _error_response(422, str(err))

    @app.exception_handler(Refused)
    async def refused(_: Request, err: Refused) -> JSONResponse:
        return _error_response(err.status, str(err), {"Retry-After": "1"} if err.status == 503 else None)

    @app.exception_handler(HTTPException)
    async def http(_: Request, err: HTTPException) -> JSONResponse:
        messages = {404: "not found; /openapi.json lists the addresses.", 400: "the body cannot be read."}
        return _error_response(err.status_code, messages.get(err.status_code, str(err.detail)), err.headers)

    @app.exception_handler(Exception)
    async def unexpected(_: Request, err: Exception) -> JSONResponse:
        logging.getLogger("entformer.explore").error("a request failed", exc_info=err)
        return _error_response(500, f"the model failed ({type(err).__name__}); see the server's log.")


def _error_response(status: int, why: str, headers: Any = None) -> JSONResponse:
    valid = why.encode("utf-8", "replace").decode()  # half a surrogate pair in a name cannot be sent
    return JSONResponse({"detail": valid}, status, headers=headers)


def _validation_message(err: RequestValidationError) -> str:
    """Returns the first error and its location, without repeating the input."""
    first = err.errors()[0]
    if first["type"] == "json_invalid":
        return f"the body is not JSON: {first.get('ctx', {}).get('error', 'it cannot be read')}."
    where = [str(part)[:40] for part in first["loc"] if part not in ("body", "[key]")]
    said = str(first["msg"]).removeprefix("Value error, ").rstrip(".")
    if first["type"] == "string_pattern_mismatch":  # the one pattern there is
        said = 'name a head as type.layer.head, such as "cross.1.2"'
    said = said[:1].lower() + said[1:]
    if not where:
        return (
            f"{said}; send a JSON object." if first["type"] in ("missing", "model_attributes_type", "dict_type") else f"{said}."
        )
    return f"{' '.join(where)}: {said}."
