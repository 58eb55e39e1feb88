"""A run while it goes on: its state in a few rows, and its page on loopback, which reloads itself."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core.errors import UserError
from ..observe.events import parse_events
from .page import page
from .runs import load_runs

_RELOAD = 5  # seconds
# A reload keeps the place on the page; the browser would lose it otherwise when heights change. It waits until the
# page is drawn, which may take long on a busy machine, and until somebody looks.
_SCRIPT = f"""<script>
addEventListener("load", () => scrollTo(0, sessionStorage.getItem("at") || 0));
setInterval(() => {{
  const state = document.body.dataset, drawn = "drawn" in state || "failed" in state;
  if ((document.getElementById("data") && !drawn) || document.hidden) return;
  sessionStorage.setItem("at", scrollY);
  location.reload();
}}, {1000 * _RELOAD});
</script>"""


class Watched:
    """The events of a run so far, read anew only where the file has grown."""

    def __init__(self, folder: Path):
        self.folder, self.path = folder, folder / "events.jsonl"
        self._size = -1
        self.events: list[dict[str, Any]] = []
        if not folder.is_dir():
            raise UserError(f"{folder} is not the folder of a run: is it written by another process, or misspelt?")

    def read(self) -> bool:
        """Is there something new?"""
        try:
            size = self.path.stat().st_size
        except OSError:
            return False
        if size == self._size:
            return False
        self._size = size
        self.events = parse_events(self.path.read_text(errors="replace"))[0]
        return True

    @property
    def over(self) -> bool:
        return (self.folder / "result.json").is_file()

    def workers(self) -> list[list[str]]:
        """A row for each worker: where it is, its loss, its pace, and how much of its time it waits."""
        last: dict[int, dict[str, Any]] = {}
        for event in self.events:
            if event["event"] in ("step", "evaluate", "start"):
                last[event["worker"]] = {**last.get(event["worker"], {}), **event}
        rows = [["worker", "step", "loss", "examples/s", "batch", "waiting", "heard"]]
        now = time.time()
        for worker, event in sorted(last.items()):
            spent = [float(event.get(name) or 0.0) for name in ("compute", "wait", "communicate")]
            clock = float(event.get("simulated_seconds") or event.get("seconds") or 0.0)
            rows.append(
                [
                    str(worker),
                    f"{event['step']:,}",
                    f"{event['loss']:.4f}" if isinstance(event.get("loss"), float) else "",
                    f"{event.get('samples', 0) / clock:,.0f}" if clock > 0 else "",
                    str(event.get("batch", "")),
                    f"{spent[1] / sum(spent):.0%}" if sum(spent) > 0 else "",
                    "" if self.over else f"{max(0.0, now - event['time']):.0f} s ago" if "time" in event else "",
                ]
            )
        return rows

    def sentence(self) -> str:
        """Steps, epochs, and the last evaluation."""
        if not self.events:
            return "no step yet"
        newest = max(self.events, key=lambda event: event["step"])
        text = f"step {newest['step']:,}, epoch {newest.get('epoch', 0) + 1}, {newest.get('rounds', 0):,} rounds"
        for event in reversed(self.events):
            if event["event"] == "evaluate" and isinstance(event.get("models"), dict):
                for name, metrics in event["models"].items():
                    text += f"; {name} " + ", ".join(f"{metric} {value:.4f}" for metric, value in metrics.items())
                break
        return text + ("; finished" if self.over else "")


def serve(folders: Sequence[Path], port: int) -> http.server.ThreadingHTTPServer:
    """A server on loopback whose only page is about these runs, made anew when one of them has news."""
    watched = [Watched(folder) for folder in folders]
    lock = threading.Lock()
    made: list[Any] = []  # the page, and whether it was made after the end

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.split("?")[0] != "/":
                self.send_error(404)
                return
            with lock:
                over = all(run.over for run in watched)
                news = [run.read() for run in watched]
                if any(news) or made[1:] != [over]:
                    made[:] = [_page(watched, over).encode(), over]
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(made[0])))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(made[0])

        def log_message(self, *_: Any) -> None:
            """Requests are not worth a line."""

    try:
        return http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise UserError(f"cannot listen on port {port}: {error.strerror}; choose another with --port") from None


def _page(watched: list[Watched], over: bool) -> str:
    begun = [run for run in watched if run.path.is_file()]
    if not begun:
        return f"<!doctype html><title>waiting</title><p>The run has not begun yet.</p>{_SCRIPT}"
    loaded = load_runs([run.folder for run in begun])
    if over:
        return page(loaded)
    for run, now in zip(begun, loaded, strict=True):
        if not run.over:  # that it has no result yet is no news
            now.notes[:] = [f"going on: {run.sentence()}"]
    return page(loaded).replace("</body>", f"{_SCRIPT}</body>")
