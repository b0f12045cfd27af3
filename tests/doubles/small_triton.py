"""A small Triton: a server and stubs that are real processes and load no model.

It stands for tritonserver as the supervisor sees it: a command line, model control over HTTP, a
process for each model, which makes a file in shared memory and, if it is an engine or `card`, beats
in a real cache pool. Like Triton, the server does not notice that a stub died, and lets go of a
model some time after it ended its process. `Installation` writes both programs. A file
`refuse_MODEL` in the folder holds how many loads of a model fail, and a model does not finish its
load while there is a file `hold_MODEL`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from card.cache import Geometry
from card.serving.supervision.processes import STUB_PROGRAM
from card.serving.supervision.states import ENSEMBLE, STUBS

_SERVER = """#!{python}
import json, os, subprocess, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FOLDER = Path({folder!r})
options = {{}}
for word in sys.argv[1:]:
    name, _, value = word.partition("=")
    options.setdefault(name, []).append(value)
repository = Path(options["--model-repository"][0])
(prefix,) = (v.partition("=")[2] for v in options["--backend-config"] if "prefix-name" in v)
stubs, loaded, unloading, lock, count = {{}}, set(), set(), threading.Lock(), 0

def load(model):
    global count
    refusals = FOLDER / f"refuse_{{model}}"
    if refusals.exists() and (left := int(refusals.read_text())):
        refusals.write_text(str(left - 1))
        return False
    with lock:
        count += 1
        region = f"{{prefix}}{{count}}"
    if model != {ensemble!r}:
        program = str(FOLDER / "backends/python/{stub}")
        stubs[model] = subprocess.Popen(
            [program, str(repository / model / "1/model.py"), region],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        if not stubs[model].stdout.readline():
            return False
    loaded.add(model)
    return True

def unload(model):
    loaded.discard(model)
    unloading.add(model)
    threading.Thread(target=end, args=(model, stubs.get(model)), daemon=True).start()
    return True

def end(model, stub):
    if stub is not None and stub.poll() is None:
        stub.stdin.close()
        stub.wait()
    time.sleep(0.4)  # Triton still holds a model when its process has ended
    unloading.discard(model)

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(200 if self.path.split("/")[3] in loaded else 400, {{}})
    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.endswith("/index"):
            models = [{{"name": m, "state": "READY"}} for m in loaded]
            models += [{{"name": m, "state": "UNLOADING"}} for m in unloading - loaded]
            return self.answer(200, models)
        model, verb = self.path.split("/")[-2:]
        ok = load(model) if verb == "load" else unload(model)
        self.answer(200 if ok else 400, {{"error": "no luck"}})
    def answer(self, status, body):
        body = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass

for model in options["--load-model"]:
    threading.Thread(target=load, args=(model,), daemon=True).start()
port = int(options["--http-port"][0])
ThreadingHTTPServer((options["--http-address"][0], port), Handler).serve_forever()
"""

_STUB = """
import os, sys, time
from pathlib import Path

model, region = sys.argv[0].split("/")[-3], Path("/dev/shm", sys.argv[1])
region.touch()
while Path({folder!r}, f"hold_{{model}}").exists():
    time.sleep(0.02)
if model in ("card", "draft", "target"):
    sys.path[:0] = {path!r}
    import threading
    from card.cache import EngineState, Geometry, Pool
    where = Path({pools!r}), os.getppid(), Geometry(**{geometry!r})
    pool = Pool.create(*where) if model == "card" else None

    def beat():
        global pool
        while True:
            pool = pool or Pool.open(*where)
            if pool is not None:
                pool.beat(model, *([] if model == "card" else [EngineState.ATTACHED]))
            time.sleep(0.05)

    threading.Thread(target=beat, daemon=True).start()
print("up", flush=True)
sys.stdin.read()
os._exit(0)
"""


class Installation:
    """The server's programs and the models that it serves, under `folder`."""

    def __init__(self, folder: Path, pools: Path, geometry: Geometry) -> None:
        self.binary = folder / "bin/tritonserver"
        self.models = folder / "models"
        self._folder = folder
        stub = folder / "backends/python" / STUB_PROGRAM
        for file in (self.binary, stub):
            file.parent.mkdir(parents=True)
        server = {"python": sys.executable, "folder": str(folder), "stub": STUB_PROGRAM}
        self.binary.write_text(_SERVER.format(**server, ensemble=ENSEMBLE))
        self.binary.chmod(0o700)
        stub.symlink_to(sys.executable)
        sizes = json.loads(json.dumps(asdict(geometry)))
        program = _STUB.format(path=sys.path, pools=str(pools), geometry=sizes, folder=str(folder))
        for model in (*STUBS, ENSEMBLE):
            (self.models / model / "1").mkdir(parents=True)
            (self.models / model / "1/model.py").write_text(program)
            (self.models / model / "config.pbtxt").write_text(f'name: "{model}"\n')

    def refuse(self, model: str, loads: int) -> None:
        """Let so many of the next loads of `model` fail."""
        (self._folder / f"refuse_{model}").write_text(str(loads))

    def hold(self, model: str) -> Path:
        """Let the next load of `model` last until the file that this returns is removed."""
        held = self._folder / f"hold_{model}"
        held.touch()
        return held
