"""One run of the server and all that it is watched by."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from card.cache import ENGINES
from card.engines.calibration_cache import CALIBRATION_CACHE_VARIABLE
from card.serving.geometry import pool_geometry
from card.serving.requests.chat_parameters import as_protobuf_text, chat_parameters
from card.serving.supervision.command_line import conceal
from card.serving.supervision.guard import GuardProcess, triton_socket
from card.serving.supervision.heartbeats import Heartbeats
from card.serving.supervision.notices import NOTICES_VARIABLE, Notices
from card.serving.supervision.policy import (
    CARD,
    ENSEMBLE,
    FRONTS,
    HOLDS_STREAMS,
    ProcessState,
    ServerSight,
    Sight,
    longest_silence_s,
    stubs_of,
)
from card.serving.supervision.probe import Probe
from card.serving.supervision.recovery import reload_model
from card.serving.supervision.repository import Repository, RepositoryError
from card.serving.supervision.residue import RunDirectory
from card.serving.supervision.server import TritonProcess
from card.serving.supervision.sighting import LoadProgress
from card.serving.supervision.triton_server import TritonInstall
from card.serving.supervision.user_cache import user_cache
from card.settings import (
    SETTINGS_VARIABLE,
    ObservabilitySettings,
    ServingSettings,
    Settings,
    freeze,
    in_ascii,
    without_settings,
)

HEADER = "card-supervisor"
"""Opens the restricted APIs: in lower case for HTTP/2, and Triton splits at `:`, `,` and `=`."""
LOG_ERRORS_ALONE = ("--log-info=false",)
"""Warnings and errors only; `serving.triton_arguments` come later and win."""
STEADY_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "4194304", "MALLOC_TRIM_THRESHOLD_": "4194304"}
"""For the C library's allocator. By itself it raises these limits to the largest block ever freed,
keeps what a few large passes took, and so grows for many minutes of mixed load."""
RETIRE_S = 2.0
"""Triton answers at once that it takes the ensemble away, or hangs."""
WITHOUT_GPU = ("--allow-gpu-metrics=false", "--pinned-memory-pool-byte-size=0")
"""Keeps the server from looking, and complaining, where no model asks for a GPU."""


class Service:
    """A started server; everything about it is asked here."""

    def __init__(
        self,
        settings: Settings,
        model_repository: Path,
        install: TritonInstall,
        run_directory: RunDirectory,
        start_server: Callable[..., TritonProcess] = TritonProcess,
        start_guard: Callable[..., GuardProcess] = GuardProcess,
    ) -> None:
        """Start the server under a header that nobody else knows; it is not ready yet.

        Raises `OSError` where this machine has no process, descriptor or room to spare, and leaves
        no process.
        """
        serving = settings.serving
        self.stubs = stubs_of(settings.roles)
        """The models of this service that have a process."""
        self._models = (*self.stubs, ENSEMBLE)
        self._engines = [model for model in self.stubs if model in ENGINES]
        socket = triton_socket(run_directory.path, serving.grpc_port)
        self._secret = secrets.token_hex(32)
        staged = run_directory.stage_models(
            model_repository, {ENSEMBLE: as_protobuf_text(_told_to_clients(settings))}
        )
        command = install.command(
            serving,
            staged,
            self._models,
            f"{HEADER}={self._secret}",
            run_directory.region_prefix,
            grpc_address=f"unix:{socket.with_name('grpc')}" if serving.guard else None,
            extra=(
                *LOG_ERRORS_ALONE,
                f"--model-load-thread-count={len(self._models)}",
                *(WITHOUT_GPU if _only_on_processors(settings) else ()),
                *trace_arguments(settings.observability),
            ),
        )
        legible = in_ascii(settings, run_directory.fresh("links"))
        notices = run_directory.fresh("notices")
        variables = {name: os.environ.get(name, value) for name, value in STEADY_MEMORY.items()}
        variables |= {
            "TMPDIR": str(run_directory.fresh("tmp")),
            NOTICES_VARIABLE: str(notices),
            CALIBRATION_CACHE_VARIABLE: str(
                legible.serving.calibration_cache or user_cache() or run_directory.calibration_cache
            ),
        }
        # A model that is reloaded months later must not read what was edited for the next start.
        freeze(legible, run_directory.settings)
        variables[SETTINGS_VARIABLE] = str(run_directory.settings)
        environment = install.environment(without_settings(os.environ)) | variables
        with ExitStack() as started:
            self.server = start_server(command, environment, run_directory.region_prefix)
            started.callback(self.server.kill)
            self.guard = start_guard(settings, socket) if serving.guard else None
            started.pop_all()
        self._notices = Notices(notices)
        self._retired = False
        self.has_served = False
        """Whether all models were seen ready once."""
        self._run_directory = run_directory
        self._engine_timeout_s = serving.engine_timeout_s
        self._load_timeout_s = serving.load_timeout_s
        self._repository = Repository(
            http_address(serving), serving.http_port, {HEADER: self._secret}
        )
        self._heartbeats = Heartbeats(
            settings.cache.directory, self.server.pid, pool_geometry(settings)
        )
        self._probe = Probe(self._repository)

    def conceal_header(self) -> bool:
        """Take the header out of the server's command line, once it has surely been read.

        Whether it is out of sight now.
        """
        started = any(self.server.stub(model) is not None for model in self.stubs)
        return started and conceal(self.server.pid, self._secret)

    def sight(self, model: str) -> Sight:
        """Look at the process of one of `stubs` and listen to its heart, if it has one."""
        stub = self.server.stub(model)
        if stub is None:
            return Sight(ProcessState.GONE)
        state = stub.state
        if model in HOLDS_STREAMS:
            beats = model == CARD and state is ProcessState.RUNNING
            silence_s = self._heartbeats.card_silence_s(stub.process.pid) if beats else 0.0
            return Sight(state, silence_s, streams=self.open_slots)
        if model not in ENGINES or state is ProcessState.GONE:
            return Sight(state)
        heard = self._heartbeats.sight(model, stub.process.pid, state)
        return heard or Sight(state, attached=False)

    def sights(self) -> dict[str, Sight]:
        """One look at each of `stubs`."""
        return {model: self.sight(model) for model in self.stubs}

    def condition(self, model: str, sight: Sight) -> str:
        """`well`, or in one word what is wrong with the process seen."""
        if sight.process is not ProcessState.RUNNING:
            return str(sight.process.value)
        if not sight.attached:
            return "detached"
        longest_s = longest_silence_s(model, self._engine_timeout_s)
        return "silent" if sight.unexplained_s > longest_s else "well"

    def is_well(self, model: str) -> bool:
        return self.condition(model, self.sight(model)) == "well"

    @property
    def engines_are_loaded(self) -> bool:
        """Whether all show themselves in the pool of this server's `card`."""
        stubs = {engine: self.server.stub(engine) for engine in self._engines}
        return all(
            stub is not None and self._heartbeats.sight(engine, stub.process.pid) is not None
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
        return self._heartbeats.open_slots()

    def is_complete(self) -> bool:
        """Whether all models serve, a draft included, and the guard if there is one."""
        if not (self.ensemble_ready and all(self.is_well(model) for model in self.stubs)):
            return False
        if self.guard is not None and self.guard.condition != "well":
            return False
        try:
            return self._repository.serves(self._models)
        except RepositoryError:
            return False

    @property
    def load_failure(self) -> str:
        """Why a model cannot be loaded, in its own words; empty if none has said so."""
        return self._notices.load_failed.text

    @property
    def guard_refusal(self) -> str:
        """Why the guard of a service that starts does not want to; empty if it may come yet."""
        if self.guard is None or not self.guard.refuses:
            return ""
        return (
            f"the guard ended during the start ({self.guard.ended}); its own message stands above; "
            "its options are serving.guard_arguments"
        )

    def load_progress(self, model: str) -> LoadProgress | None:
        """How far the load of an engine has come; None for others, and when all of it is done."""
        notice = self._notices.loading.get(model)
        lasting = None if notice is None else notice.phase
        return None if lasting is None else LoadProgress(lasting[0], round(lasting[1], 1))

    def reload(self, model: str) -> None:
        """Bring one model back; blocks. Raises `RecoveryError`."""
        reload_model(
            model,
            dead=self.server.stub(model),
            server=self.server,
            repository=self._repository,
            is_well=lambda: (
                self.is_well(model) and (self._retired or self._repository.is_ready(ENSEMBLE))
            ),
            timeout_s=self._load_timeout_s,
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
        """Take the fronts away, whose open requests can then be seen to end.

        Comes last, because Triton itself answers those who still come, and says no more than that
        the model has no version. Raises `RepositoryError`.
        """
        if not self._retired:
            self._retired = True
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
            end.callback(self._heartbeats.close)
            end.callback(self._probe.close)
            end.callback(self.server.kill)
            if self.guard is not None:
                end.callback(self.guard.close)


def _only_on_processors(settings: Settings) -> bool:
    return all(getattr(settings, role).device == "cpu" for role in settings.roles)


def http_address(serving: ServingSettings) -> str:
    """What the server binds for HTTP: its own option may keep that narrower than gRPC."""
    option = "--http-address="
    given = [a.removeprefix(option) for a in serving.triton_arguments if a.startswith(option)]
    return given[-1] if given else serving.address


def trace_arguments(settings: ObservabilitySettings) -> tuple[str, ...]:
    """Options that make the server send OpenTelemetry traces, if they are wanted."""
    if settings.trace_url is None:
        return ()
    return (
        "--trace-config=mode=opentelemetry",
        "--trace-config=level=TIMESTAMPS",
        f"--trace-config=rate={settings.trace_rate}",
        f"--trace-config=opentelemetry,url={settings.trace_url}",
        "--trace-config=opentelemetry,resource=service.name=card",
    )


def _told_to_clients(settings: Settings) -> dict[str, str]:
    """What the ensemble's configuration tells whoever asks for it."""
    context = str(settings.limits.context_tokens)
    return {"context_tokens": context, **chat_parameters(settings.target.path)}
