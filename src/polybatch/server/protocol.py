"""HTTP/1.1 as uvicorn reads it with httptools, with a limit that httptools lacks."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 1 << 16


class BoundedHttp(HttpToolsProtocol):
    """Answers 400 and closes where a client sends over 64 KiB without ending the head, or between parts of the body.

    Otherwise whoever can connect could fill the memory with one header, without a key and before any limit on bodies.
    """

    _unread_bytes = 0

    def data_received(self, data: bytes) -> None:
        self._unread_bytes += len(data)
        super().data_received(data)
        if self._unread_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The head of a request may have {MAX_HEAD_BYTES} bytes.")

    def on_headers_complete(self) -> None:
        self._unread_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unread_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unread_bytes = 0
        super().on_message_complete()
