"""A loopback HTTP proxy in front of the real store that fails chosen requests in chosen ways."""

from __future__ import annotations

import http.client
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import urlsplit

Effect = Literal["refuse", "lose the answer", "cut the body", "stall the body"]
HOP_HEADERS = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect"}


@dataclass
class Fault:
    """What happens to the next `times` requests whose method, path and headers match.

    refuse: answer `status` and `code` without asking the store. lose the answer: the store does
    what was asked, the client gets `status`. cut the body: half of it, then the connection closes.
    stall the body: half of it, then nothing.
    """

    effect: Effect
    method: str
    path: str
    times: int = 1
    status: int = 503
    code: str = "SlowDown"
    header: str = ""  # pattern some header value must match

    def takes(self, method: str, path: str, headers: list[tuple[str, str]]) -> bool:
        return (
            self.times > 0
            and method == self.method
            and re.search(self.path, path) is not None
            and any(re.search(self.header, value) for _, value in headers)
        )


@dataclass
class Proxy:
    """The running proxy: `faults` may be changed at any time, `seen` lists (method, path) of all requests.

    delay: seconds before any answer.
    """

    upstream: str
    delay: float = 0.0
    faults: list[Fault] = field(default_factory=list)
    seen: list[tuple[str, str]] = field(default_factory=list)
    endpoint: str = ""
    closing: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next_fault(self, method: str, path: str, headers: list[tuple[str, str]]) -> Fault | None:
        with self.lock:
            self.seen.append((method, path))
            for fault in self.faults:
                if fault.takes(method, path, headers):
                    fault.times -= 1
                    return fault
        return None


@contextmanager
def fault_proxy(upstream: str) -> Iterator[Proxy]:
    proxy = Proxy(upstream)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            fault = proxy.next_fault(self.command, self.path, self.headers.items())
            time.sleep(proxy.delay)
            if fault and fault.effect == "refuse":
                self.refuse(fault)
                return
            status, headers, answer = self.ask_store(body)
            if fault and fault.effect == "lose the answer":
                self.refuse(fault)
                return
            self.send_response(status)
            for name, value in headers:
                if name.lower() not in HOP_HEADERS:
                    self.send_header(name, value)
            length = dict(headers).get("Content-Length", "0") if self.command == "HEAD" else str(len(answer))
            self.send_header("Content-Length", length)
            self.end_headers()
            if fault:
                self.wfile.write(answer[: len(answer) // 2])
                if fault.effect == "stall the body":
                    proxy.closing.wait(30)
                self.close_connection = True
            else:
                self.wfile.write(answer)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = forward  # noqa: N815 - named by http.server

        def ask_store(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            address = urlsplit(proxy.upstream)
            store = http.client.HTTPConnection(address.hostname or "", address.port)
            # The Host header stays the proxy's: it is part of what the client signed.
            store.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in HOP_HEADERS:
                    store.putheader(name, value)
            store.putheader("Content-Length", str(len(body)))
            store.endheaders(body)
            answer = store.getresponse()
            data = answer.read()
            store.close()
            return answer.status, answer.getheaders(), data

        def refuse(self, fault: Fault) -> None:
            text = f"<Error><Code>{fault.code}</Code><Message>a fault of the test</Message></Error>".encode()
            self.send_response(fault.status)
            self.send_header("Content-Length", "0" if self.command == "HEAD" else str(len(text)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with serve(Handler) as endpoint:
        proxy.endpoint = endpoint
        try:
            yield proxy
        finally:
            proxy.closing.set()


@contextmanager
def serve(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Run an HTTP server on a free loopback port; yields its endpoint."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.block_on_close = False  # type: ignore[misc]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
