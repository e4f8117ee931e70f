"""Requests drawn from the OpenAPI description, right and wrong ones: no 5xx, and every answer is as it says."""

from collections.abc import Callable
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import positive_data_acceptance

from entformer.checkpoint import LoadedRun
from entformer.explore import create_app

OPERATIONS = [("/api/health", "GET"), ("/api/model", "GET"), ("/api/translate", "POST"), ("/api/attention", "POST")]
# What the schema cannot say (a head that is not there, too many subwords) is refused too, so not all that fits it is accepted.
TOO_STRICT = [positive_data_acceptance]


@pytest.fixture(scope="module")
def schema(make_run: Callable[..., LoadedRun]) -> Any:
    app = create_app(make_run(), name="small", max_tokens=12, hosts=["*"], timeout=900.0)
    return schemathesis.openapi.from_asgi("/openapi.json", app)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize(("path", "method"), OPERATIONS[2:])
def test_answers_are_as_described(schema: Any, path: str, method: str, mode: GenerationMode) -> None:
    statuses = set()

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
    @given(case=schema[path][method].as_strategy(generation_mode=mode))
    def check(case: Case) -> None:
        answer = case.call_and_validate(excluded_checks=TOO_STRICT)
        statuses.add(answer.status_code)

    check()
    assert (200 in statuses) == (mode is GenerationMode.POSITIVE)


@pytest.mark.parametrize(("path", "method"), OPERATIONS[:2])
def test_addresses_without_arguments_answer_as_described(schema: Any, path: str, method: str) -> None:
    case: Case = schema[path][method].Case()
    assert case.call_and_validate().status_code == 200
