"""Who may see the dashboard: a browser or a program on this machine that has the token. Nothing can be changed.

The Host header is checked, so that no other site can reach in under a name of its own. The token comes once in the
link and stays in a cookie that scripts cannot read and other sites do not send; programs send it as a header. The
package's own assets hold no data, and are given to the page that says how to open the dashboard.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from pathlib import Path

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ASSETS = Path(__file__).parent / "assets"
_METHODS = ("GET", "HEAD")
_HEADERS: Mapping[str, str] = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_HOW = "open the dashboard by the link that `penstock dashboard` printed, or send: Authorization: Bearer TOKEN\n"


class Guard:
    """Lets requests through to the application, or answers them itself."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str], token: str, cookie: str) -> None:
        self._app, self._hosts, self._token, self._cookie = app, hosts, token, cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        answer = self._answer(scope)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await (answer or self._app)(scope, receive, send_guarded)

    def _answer(self, scope: Scope) -> Response | None:
        """What is answered in the application's place; nothing where the request may go on."""
        headers = Headers(scope=scope)
        if headers.get("host", "").lower() not in self._hosts:
            return PlainTextResponse("this is not the host that was asked for\n", 421)
        if scope["method"] not in _METHODS:
            return PlainTextResponse("the dashboard only shows\n", 405, {"allow": ", ".join(_METHODS)})
        given = QueryParams(scope["query_string"]).get("token")
        if given is not None:
            return self._enter(headers) if self._is_token(given) else _locked(scope)
        if scope["path"].startswith("/assets/") or self._known(headers):
            return None
        return _locked(scope)

    def _enter(self, headers: Headers) -> Response:
        answer: Response = RedirectResponse("/", 303)
        if headers.get("sec-fetch-site") == "cross-site":
            # From the page that `penstock dashboard` opens: the cookie is only sent where this site itself leads.
            answer = HTMLResponse("", 200, {"refresh": "0; url=/"})
        answer.set_cookie(self._cookie, self._token, path="/", httponly=True, samesite="strict")
        return answer

    def _known(self, headers: Headers) -> bool:
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._is_token(given.strip()):
            return True
        try:
            kept = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return False
        return kept is not None and self._is_token(kept.value)

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), self._token.encode())


def _locked(scope: Scope) -> Response:
    challenge = {"www-authenticate": "Bearer"}
    page = ASSETS / "locked.html"
    if scope["path"].startswith("/api/") or not page.is_file():
        return PlainTextResponse(_HOW, 401, challenge)
    return HTMLResponse(page.read_text(), 401, challenge)
