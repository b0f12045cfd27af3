"""One run of the server and all that it is watched by."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from card.cache import ENGINES, EngineState, SlotState
from card.engines.calibration_cache import CALIBRATION_CACHE_VARIABLE
from card.serving.found_pool import FoundPool
from card.serving.geometry import pool_geometry
from card.serving.model_files import as_protobuf_text
from card.serving.notices import NOTICES_VARIABLE, Notices
from card.serving.supervision.guard import GuardProcess, triton_socket
from card.serving.supervision.health import GuardHealth, ModelHealth
from card.serving.supervision.processes import TritonProcess, conceal
from card.serving.supervision.recovery import reload_model
from card.serving.supervision.repository import Probe, Repository, RepositoryError
from card.serving.supervision.residue import RunDirectory
from card.serving.supervision.states import CARD, ENSEMBLE, FRONTS, HOLDS_STREAMS, stubs_of
from card.serving.supervision.watch import (
    CARD_SILENCE_S,
    ProcessState,
    ServerSight,
    Sight,
    Starvation,
)
from card.serving.triton_server import TritonInstall, http_address
from card.settings import (
    SETTINGS_VARIABLE,
    Settings,
    freeze,
    in_ascii,
    without_settings,
)

HEADER = "card-supervisor"
"""Opens the restricted APIs: in lower case for HTTP/2, and Triton splits at `:`, `,` and `=`."""
STEADY_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "4194304", "MALLOC_TRIM_THRESHOLD_": "4194304"}
"""For the C library's allocator. By itself it raises these limits to the largest block ever freed,
keeps what a few large passes took, and so grows for many minutes of mixed load."""
RETIRE_S = 2.0
"""Triton answers at once that it takes the ensemble away, or hangs."""


class RunningService:
    """A started server; everything about it is asked here."""

    def __init__(
        self,
        settings: Settings,
        model_repository: Path,
        told_to_clients: Mapping[str, str],
        install: TritonInstall,
        run_directory: RunDirectory,
        start_server: Callable[..., TritonProcess] = TritonProcess,
        start_guard: Callable[..., GuardProcess] = GuardProcess,
    ) -> None:
        """Start the server under a header that only this process knows; it is not ready yet.

        told_to_clients  parameters of the ensemble
        Raises `OSError` where this machine has no process, descriptor or room to spare, and leaves
        no process.
        """
        serving = settings.serving
        self.stubs = stubs_of(settings.roles)
        """The models of this service that have a process."""
        self._models = (*self.stubs, ENSEMBLE)
        socket = triton_socket(run_directory.path, serving.grpc_port)
        self._secret = secrets.token_hex(32)
        command = install.command(
            settings,
            run_directory.stage_models(
                model_repository, {ENSEMBLE: as_protobuf_text(dict(told_to_clients))}
            ),
            self._models,
            f"{HEADER}={self._secret}",
            run_directory.region_prefix,
            grpc_address=f"unix:{socket.with_name('grpc')}" if serving.guard else None,
        )
        legible = in_ascii(settings, run_directory.fresh("links"))
        notices = run_directory.fresh("notices")
        # A model that is reloaded months later must not read what was edited for the next start.
        freeze(legible, run_directory.settings)
        environment = install.environment(without_settings(os.environ)) | {
            **{name: os.environ.get(name, value) for name, value in STEADY_MEMORY.items()},
            "TMPDIR": str(run_directory.fresh("tmp")),
            NOTICES_VARIABLE: str(notices),
            CALIBRATION_CACHE_VARIABLE: str(
                legible.serving.calibration_cache or run_directory.calibration_cache
            ),
            SETTINGS_VARIABLE: str(run_directory.settings),
        }
        with ExitStack() as started:
            self.server = start_server(command, environment, run_directory.region_prefix)
            started.callback(self.server.kill)
            self.guard = start_guard(settings, socket) if serving.guard else None
            started.pop_all()
        self._notices = Notices(notices)
        self.is_retired = False
        """Whether clients find no model any more."""
        self._run_directory = run_directory
        self._serving = serving
        self._repository = Repository(
            http_address(serving), serving.http_port, {HEADER: self._secret}
        )
        self._pool = FoundPool(settings.cache.directory, self.server.pid, pool_geometry(settings))
        self._pool_lock = threading.Lock()
        self._starvation = {engine: Starvation() for engine in ENGINES}
        self._probe = Probe(self._repository)

    # --- what is seen --------------------------------------------------------------------------

    def sight(self, model: str) -> Sight:
        """Look at the process of one of `stubs` and at its heartbeat in the cache pool."""
        stub = self.server.stub(model)
        state = ProcessState.GONE if stub is None else stub.state
        streams = self.open_slots if model in HOLDS_STREAMS else 0
        if stub is None or model not in (*ENGINES, CARD):
            return Sight(state, streams=streams)
        silence_s, attached = self._heard(model, stub.process.pid)
        if state is ProcessState.GONE or (silence_s is None and model == CARD):
            return Sight(state, streams=streams)
        if silence_s is None:
            return Sight(state, attached=False)
        if model == CARD:
            beats = state is ProcessState.RUNNING
            return Sight(state, silence_s if beats else 0.0, streams=streams)
        starved_s = self._starvation[model].of(stub.process.pid, silence_s)
        return Sight(state, silence_s, starved_s, attached)

    def sights(self) -> dict[str, Sight]:
        """One look at each of `stubs`."""
        return {model: self.sight(model) for model in self.stubs}

    def condition(self, model: str, sight: Sight) -> str:
        """`well`, or in one word what is wrong with the process seen."""
        return sight.condition(CARD_SILENCE_S if model == CARD else self._serving.engine_timeout_s)

    def is_well(self, model: str) -> bool:
        return self.condition(model, self.sight(model)) == "well"

    def ills(self) -> dict[str, str]:
        """What is not well, the guard included, and in one word why."""
        conditions = {m: self.condition(m, sight) for m, sight in self.sights().items()}
        if self.guard is not None:
            conditions["guard"] = self.guard.condition
        return {name: condition for name, condition in conditions.items() if condition != "well"}

    @property
    def engines_are_loaded(self) -> bool:
        """Whether all show themselves in the pool of this server's `card`."""
        engines = [model for model in self.stubs if model in ENGINES]
        stubs = {engine: self.server.stub(engine) for engine in engines}
        return all(
            stub is not None and self._heard(engine, stub.process.pid)[0] is not None
            for engine, stub in stubs.items()
        )

    @property
    def ensemble_ready(self) -> bool:
        """What the server last said of the ensemble."""
        return self._probe.ready

    @property
    def server_sight(self) -> ServerSight:
        """One look at the server itself."""
        return ServerSight(self.server.state, self._probe.silence_s, self._probe.listens)

    @property
    def open_slots(self) -> int:
        """Sessions that run now."""
        with self._pool_lock:
            pool = self._pool.get()
            return 0 if pool is None else int(np.count_nonzero(pool.states == SlotState.OPEN))

    def is_complete(self) -> bool:
        """Whether all models serve, a draft included, and the guard if there is one."""
        if not self.ensemble_ready or self.ills():
            return False
        try:
            states = self._repository.states()
        except RepositoryError:
            return False
        return all("READY" in states.get(model, ()) for model in self._models)

    @property
    def load_failure(self) -> str:
        """Why a model cannot be loaded, in its own words; empty if none has said so."""
        return self._notices.load_failed.text

    def model_health(self, model: str, sight: Sight, reloads: int, reloading: bool) -> ModelHealth:
        """What the health port says of a model."""
        stub = self.server.stub(model)
        notice = self._notices.loading.get(model)
        phase = None if notice is None else notice.phase
        return ModelHealth(
            "recovering" if reloading else self.condition(model, sight),
            pid=None if stub is None else stub.process.pid,
            reloads=reloads,
            loading=None if phase is None else {"phase": phase[0], "seconds": round(phase[1], 1)},
        )

    @property
    def guard_health(self) -> GuardHealth | None:
        return None if self.guard is None else GuardHealth(self.guard.condition, self.guard.pid)

    # --- what is done --------------------------------------------------------------------------

    def conceal_header(self) -> bool:
        """Take the header out of the server's command line, once it has surely been read; whether
        it is out of sight now."""
        started = any(self.server.stub(model) is not None for model in self.stubs)
        return started and conceal(self.server.pid, self._secret)

    def reload(self, model: str) -> None:
        """Bring one model back; blocks. Raises `RecoveryError`."""
        reload_model(
            model,
            dead=self.server.stub(model),
            server=self.server,
            repository=self._repository,
            is_well=lambda: (
                self.is_well(model) and (self.is_retired or self._repository.is_ready(ENSEMBLE))
            ),
            timeout_s=self._serving.load_timeout_s,
            # Requests that no slot shows, because they had none yet or no longer, hang with `card`.
            must_let_go=model == CARD,
        )

    def refuse(self) -> None:
        """Let the models refuse new requests, with words of ours; those that are open go on.

        Not by SIGTERM: that stops open gRPC streams at once, and never ends if a process died
        under a request.
        """
        self._notices.draining.post()

    def retire(self) -> None:
        """Take the fronts away, so that their open requests can be seen to end.

        Comes last, because Triton itself answers later requests, and says no more than that the
        model has no version. Raises `RepositoryError`.
        """
        if not self.is_retired:
            self.is_retired = True
            for front in FRONTS:
                self._repository.unload(front, RETIRE_S)

    def is_idle(self) -> bool:
        """Whether, after `retire`, every open request has been answered to its end."""
        try:
            return all(map(self._repository.is_unloaded, FRONTS))
        except RepositoryError:
            return True

    def close(self) -> None:
        """Kill the server, its stubs and the guard and remove their shared-memory files."""
        with ExitStack() as end:  # each step is taken even if one before it fails
            end.callback(self._run_directory.sweep_regions)
            end.callback(self._close_pool)
            end.callback(self._probe.close)
            end.callback(self.server.kill)
            if self.guard is not None:
                end.callback(self.guard.close)

    def _close_pool(self) -> None:
        with self._pool_lock:
            self._pool.close()

    def _heard(self, model: str, pid: int) -> tuple[float | None, bool]:
        """Seconds since the last heartbeat of `model`, and whether it is attached; None: its
        process `pid` has not beaten yet."""
        with self._pool_lock:
            pool = self._pool.get()
            if pool is None or pool.pid(model) != pid:
                return None, False
            attached = model in ENGINES and pool.engine_state(model) is EngineState.ATTACHED
            return pool.silence_s(model), attached
