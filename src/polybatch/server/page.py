"""The page at / and its files, all from this machine."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

from starlette.responses import FileResponse, Response

from polybatch.server.errors import ApiError

_FOLDER = Path(__file__).parent / "static"
_TYPES = {
    "index.html": "text/html",
    "docs.html": "text/html",
    "style.css": "text/css",
    "app.js": "text/javascript",
    "docs.js": "text/javascript",
    "plotly.js": "text/javascript",
}
_POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


def page_file(name: str) -> Response:
    """One of the page's files; 404 for any other name. No name is ever made part of a path."""
    if name not in _TYPES:
        raise ApiError(404, "there is no such file", code="not_found")
    path = _plotly() if name == "plotly.js" else _FOLDER / name
    if path is None:
        raise ApiError(404, "the chart library is not installed: pip install plotly", code="not_found")
    headers = {
        "Content-Security-Policy": _POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }
    headers["Cache-Control"] = "max-age=86400" if name == "plotly.js" else "no-cache"
    return FileResponse(path, media_type=_TYPES[name], headers=headers)


@cache
def _plotly() -> Path | None:
    """plotly.js as the Python package plotly carries it; the package itself, which is slow to import, is not."""
    spec = importlib.util.find_spec("plotly")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "package_data" / "plotly.min.js"
    return path if path.is_file() else None
