"""The explorer as a web application. In: a trained run. Out: a FastAPI app: one page, a JSON API, its OpenAPI description.

Requests carry text and numbers only. The run is read once, before the first request, and nothing afterwards touches the disk.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from entformer import __version__
from entformer.checkpoint import LoadedRun, load_run
from entformer.errors import ArgumentError
from entformer.explore.engine import Engine
from entformer.explore.messages import (
    AttentionAnswer,
    AttentionRequest,
    Health,
    ModelFacts,
    Problem,
    TranslateAnswer,
    TranslateRequest,
)
from entformer.explore.model_queue import Deadline, ModelQueue, Refused
from entformer.explore.page import explorer_page
from entformer.explore.security import LOOPBACK, SecurityMiddleware

MOST_TOKENS = 4096  # of a sentence, whatever the user allows: attention is quadratic

DESCRIPTION = """Translate a sentence with a trained model, see what every attention head looks at, and ask what would happen
if a head had another alpha. Nothing is kept between two requests. A request that cannot be answered gets one sentence, in
`detail`."""
PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "The request cannot be read, or is for another host"},
    408: {"model": Problem, "description": "The request did not arrive in time"},
    413: {"model": Problem, "description": "The request is too large"},
}
MODEL_PROBLEMS: dict[int | str, dict[str, Any]] = {
    **PROBLEMS,
    422: {"model": Problem, "description": "Something in the request is wrong: too long, out of range, or no such head"},
    503: {"model": Problem, "description": "The model is busy; try again in a moment"},
    504: {"model": Problem, "description": "The request took too long and was given up"},
}


def create_app(
    run: Path | str | LoadedRun,
    *,
    which: str | Path = "best",
    name: str | None = None,
    device: torch.device | str = "cpu",
    max_tokens: int = 100,
    timeout: float = 30.0,
    waiting: int = 100,
    hosts: Sequence[str] = LOOPBACK,
    examples: Sequence[str] = (),
) -> FastAPI:
    """The explorer of one run, to serve with any ASGI server or to mount into another application.

    Args:
        run: a run folder, or a run that is loaded already. The app uses its model alone: do not train it meanwhile.
        which: the weights, as in `load_run`; not read if the run is loaded.
        name: shown on the page; the folder's name if not given.
        device: where a run folder is loaded to.
        max_tokens: subwords of a sentence at most.
        timeout: seconds for a request, waiting and working together.
        waiting: requests that may wait for the model; more are refused at once.
        hosts: names by which requests may call the server (the Host header, without port). ["*"] allows any: needed where
            others reach the app by its name, and wrong for one that only this machine should use.
        examples: sentences the page offers to begin with.
    """
    if not 1 <= max_tokens <= MOST_TOKENS:
        raise ArgumentError(f"max_tokens={max_tokens} must be between 1 and {MOST_TOKENS}.")
    if not 0 < timeout < float("inf"):
        raise ArgumentError(f"timeout={timeout} must be a positive number of seconds.")
    if waiting < 1:
        raise ArgumentError(f"waiting={waiting} must be at least 1.")
    if isinstance(hosts, str) or not hosts:
        raise ArgumentError('hosts must be a list of names, such as ["localhost"], or ["*"] for any.')
    if name is None:
        name = "this model" if isinstance(run, LoadedRun) else Path(run).resolve().name
    loaded = run if isinstance(run, LoadedRun) else load_run(run, which, device=device)
    engine = Engine(loaded, name=name, max_tokens=max_tokens, seconds=timeout, examples=examples)
    gate = ModelQueue(seconds=timeout, places=waiting)
    page, policy = explorer_page(name)

    app = FastAPI(
        title="entformer explore",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,  # the usual page loads its scripts from elsewhere
        redoc_url=None,
    )
    app.add_middleware(SecurityMiddleware, hosts=hosts, seconds=timeout)
    _say_problems(app)

    async def answer(request: Request, work: Callable[[Deadline], BaseModel]) -> Response:
        # Made into text in the thread too: a large answer must not hold up the event loop.
        text = await gate.run(lambda deadline: work(deadline).model_dump_json().encode(), request.is_disconnected)
        return Response(text, media_type="application/json")

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def show_page() -> HTMLResponse:
        return HTMLResponse(page, headers={"Content-Security-Policy": policy})

    @app.get("/api/health", response_model=Health, responses=PROBLEMS, summary="Is the server there?")
    async def health() -> Health:
        """Answered at once, also while the model works."""
        return Health(waiting=gate.waiting)

    @app.get("/api/model", response_model=ModelFacts, responses=PROBLEMS, summary="The model, its heads, and the limits")
    async def model() -> ModelFacts:
        """Which heads there are, their alphas as trained, and what a request may ask for."""
        return engine.facts

    @app.post("/api/translate", response_model=TranslateAnswer, responses=MODEL_PROBLEMS, summary="Translate a sentence")
    async def translate(body: TranslateRequest, request: Request) -> Response:
        """The n best translations, if wanted with other alphas for some heads."""
        return await answer(request, lambda deadline: engine.translate(body, deadline))

    @app.post("/api/attention", response_model=AttentionAnswer, responses=MODEL_PROBLEMS, summary="Weights of every head")
    async def attention(body: AttentionRequest, request: Request) -> Response:
        """What every head looks at, on the best translation or on a target of yours, and how probable each token was."""
        return await answer(request, lambda deadline: engine.attention(body, deadline))

    return app


def _say_problems(app: FastAPI) -> None:
    """Every problem in the same form: one sentence."""

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, problem: RequestValidationError) -> JSONResponse:
        return _problem(422, _sentence(problem))

    @app.exception_handler(ArgumentError)
    async def impossible(_: Request, problem: ArgumentError) -> JSONResponse:
        return _problem(422, str(problem))

    @app.exception_handler(Refused)
    async def refused(_: Request, problem: Refused) -> JSONResponse:
        return _problem(problem.status, str(problem), {"Retry-After": "1"} if problem.status == 503 else None)

    @app.exception_handler(HTTPException)
    async def http(_: Request, problem: HTTPException) -> JSONResponse:
        said = {
            404: "there is nothing at this address; /openapi.json describes what there is.",
            400: "the body cannot be read.",
        }
        return _problem(problem.status_code, said.get(problem.status_code, str(problem.detail)), problem.headers)

    @app.exception_handler(Exception)
    async def unexpected(_: Request, problem: Exception) -> JSONResponse:
        logging.getLogger("entformer.explore").error("a request failed", exc_info=problem)
        return _problem(500, f"the model failed ({type(problem).__name__}); the server's log says more.")


def _problem(status: int, why: str, headers: Any = None) -> JSONResponse:
    valid = why.encode("utf-8", "replace").decode()  # half a surrogate pair in a name cannot be sent
    return JSONResponse({"detail": valid}, status, headers=headers)


def _sentence(problem: RequestValidationError) -> str:
    """The first thing that is wrong, and where, without repeating what was sent."""
    first = problem.errors()[0]
    if first["type"] == "json_invalid":
        return f"the body is not JSON: {first.get('ctx', {}).get('error', 'it cannot be read')}."
    where = [str(part)[:40] for part in first["loc"] if part not in ("body", "[key]")]
    said = str(first["msg"]).removeprefix("Value error, ").rstrip(".")
    if first["type"] == "string_pattern_mismatch":  # the one pattern there is
        said = 'name a head as kind.layer.head, such as "cross.1.2"'
    said = said[:1].lower() + said[1:]
    if not where:
        return (
            f"{said}; send a JSON object." if first["type"] in ("missing", "model_attributes_type", "dict_type") else f"{said}."
        )
    return f"{' '.join(where)}: {said}."
