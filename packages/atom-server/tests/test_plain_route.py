"""`PlainRoute`: what a function does by itself is left to it, and nothing else."""

from __future__ import annotations

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
from starlette.responses import Response
from starlette.testclient import TestClient

from atom_server.routes.plain_route import PlainRoute


def refuse() -> None:
    raise HTTPException(403)


async def greet(request: Request) -> Response:
    """As Starlette calls it: FastAPI would have left something in the scope."""
    assert "fastapi_inner_astack" not in request.scope
    return Response(f"hello {request.query_params['name']}")


async def greet_by_name(request: Request, name: str) -> Response:
    return Response(f"hello {name}")


async def count(request: Request) -> dict[str, int]:
    return {"count": 1}


def answer_of(endpoint, method="GET", **settings) -> tuple[int, str]:
    router = APIRouter(route_class=PlainRoute, **settings)
    router.add_api_route("/", endpoint)
    app = FastAPI()
    app.include_router(router)
    answer = TestClient(app).request(method, "/?name=ann")
    return answer.status_code, answer.text


def test_a_function_gets_the_request_as_it_is():
    assert answer_of(greet) == (200, "hello ann")
    assert answer_of(greet, method="PUT")[0] == 405


def test_what_else_a_function_takes_or_gives_and_what_is_asked_before_it_is_not_left_out():
    assert answer_of(greet_by_name) == (200, "hello ann")
    assert answer_of(count) == (200, '{"count":1}')
    assert answer_of(greet, dependencies=[Depends(refuse)])[0] == 403
