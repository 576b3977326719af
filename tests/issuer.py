"""A real issuer of tokens for the tests: OAuth client credentials at `/token`, its keys at `/keys`, on loopback."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

AUDIENCE = "kafka"
SECRET = "s3cret of a client"


class Issuer:
    """Gives whoever knows the secret a token, signed by RS256, whose subject is the client's id."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.given: list[str] = []
        issuer = self

        class Door(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(200, {"keys": [issuer._public()]})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                shown = self.headers.get("Authorization", "").removeprefix("Basic ")
                client, _, secret = base64.b64decode(shown).decode().partition(":")
                form = parse_qs(body)
                if secret != SECRET or form.get("grant_type") != ["client_credentials"]:
                    self._answer(401, {"error": "invalid_client", "error_description": "no such client, or secret"})
                    return
                issuer.given.append(client)
                token = issuer._token(client, form.get("scope", [""])[0])
                self._answer(200, {"access_token": token, "token_type": "Bearer", "expires_in": 600})

            def _answer(self, status: int, content: dict[str, Any]) -> None:
                text = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _token(self, client: str, scope: str) -> str:
        now = int(time.time())
        head = {"alg": "RS256", "typ": "JWT", "kid": "1"}
        claims = {"iss": self.url, "aud": AUDIENCE, "sub": client, "iat": now, "exp": now + 600, "scope": scope}
        signed = f"{_text(json.dumps(head).encode())}.{_text(json.dumps(claims).encode())}"
        return f"{signed}.{_text(self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"

    def _public(self) -> dict[str, str]:
        numbers = self._key.public_key().public_numbers()
        n, e = (number.to_bytes((number.bit_length() + 7) // 8, "big") for number in (numbers.n, numbers.e))
        return {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "1", "n": _text(n), "e": _text(e)}


@contextlib.contextmanager
def running_issuer() -> Iterator[Issuer]:
    issuer = Issuer()
    issuer.start()
    try:
        yield issuer
    finally:
        issuer.close()


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
