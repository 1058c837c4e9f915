"""One run, from spec to stored bundle: the command ``bench`` and the sweeper both call :func:`run_bench`."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, Any, Literal

from engine.errors import InvalidInputError
from workbench.benchspec import BenchSpec, Deadlines
from workbench.collectors.cpu import INTERVAL_S, CpuSampler
from workbench.collectors.gpu import GpuSampler
from workbench.errors import TargetError, WorkbenchError
from workbench.load.progress import BenchProgress, ProgressCallback
from workbench.manifest import ClockPair, RunStatus, TargetInfo, git_info, machine_info
from workbench.metrics.compute import compute_metrics
from workbench.profiling.window import ProfileSession
from workbench.records import CHUNKS_SCHEMA_VERSION, REQUESTS_SCHEMA_VERSION, TELEMETRY_SCHEMA_VERSION
from workbench.runstore import Run, RunStore, RunWriter
from workbench.slo import Slo, parse_slo
from workbench.targets.base import ServerFacts, echo_mismatches
from workloads import WorkloadError

if TYPE_CHECKING:
    from workbench.load.bodies import Features
    from workbench.load.measure import Measured
    from workbench.targets.attach import AttachTarget
    from workbench.targets.builtin import BuiltinTarget
    from workbench.targets.command import CommandTarget

    AnyTarget = BuiltinTarget | AttachTarget | CommandTarget

__all__ = ["BenchProgress", "BenchSpec", "Deadlines", "ProgressCallback", "run_bench"]


def run_bench(spec: BenchSpec, store: RunStore, *, progress: ProgressCallback | None = None) -> Run:
    """Start or attach the target, warm up, send the load, collect, compute, store.

    The run's folder exists from the start and is readable at any moment. Ctrl-C while measuring ends the
    run early: it is
    returned with status ``interrupted``, with everything recorded so far. The server that was started is
    gone when this returns.

    Raises:
        InvalidInputError, WorkloadError: the spec can't be run; nothing is stored when that is known at once.
        TargetError: the server did not start or does not answer; the run is stored as ``failed`` with its
        log. KeyboardInterrupt: before or after measuring; the run is stored as ``interrupted``.
    """
    slo = _check(spec)
    nonce = spec.nonce if spec.nonce is not None else secrets.token_hex(8)
    kind: Literal["builtin", "attach", "command"] = "builtin" if spec.base_url is None else "attach"
    if spec.server is not None:
        kind = "command"
    writer = store.create(
        target=TargetInfo(kind=kind, base_url=spec.base_url, model=spec.model or spec.engine.get("model")),
        name=spec.name,
        tags=list(spec.tags),
        command=list(spec.command),
        workload={"sha256": spec.workload.sha256, **spec.workload.model_dump(mode="json")},
        workload_sha256=spec.workload.sha256,
        seed=spec.seed,
        nonce=nonce,
        sweep=spec.sweep,
        slo=str(slo) if slo else None,
        load=_load_fields(spec),
        git=git_info(),
        machine=machine_info(),
        clock=[ClockPair.now()],
    )
    try:
        return _Bench(spec, writer, nonce, slo, progress).run()
    except KeyboardInterrupt:
        writer.finish("interrupted", "interrupted", clock=[*writer.manifest.clock, ClockPair.now()])
        raise
    except (WorkbenchError, InvalidInputError, WorkloadError) as error:
        writer.finish("failed", str(error), clock=[*writer.manifest.clock, ClockPair.now()])
        raise
    except BaseException as error:
        writer.finish(
            "failed", f"{type(error).__name__}: {error}", clock=[*writer.manifest.clock, ClockPair.now()]
        )
        raise


class _Bench:
    """The steps of one run."""

    def __init__(
        self,
        spec: BenchSpec,
        writer: RunWriter,
        nonce: str,
        slo: Slo | None,
        progress: ProgressCallback | None,
    ) -> None:
        self._spec = spec
        self._writer = writer
        self._nonce = nonce
        self._slo = slo
        self._progress = progress
        self._reasons: list[str] = []
        """Why the run is invalid."""
        self._notes: list[str] = []
        """What the run's numbers do not depend on, but a reader of the trace should know."""

    def run(self) -> Run:
        self._show("starting")
        self._probe_machine()
        with self._target() as target:
            self._writer.update(target=target.info)
            with (
                CpuSampler(target.pids) as sampler,
                GpuSampler() as gpu_sampler,
                self._profile(target) as profile,
            ):
                measured = self._measure(target, profile.watch(self._progress))
                death = target.death()
        self._show("collecting")
        if death is not None:
            self._reasons.append(death)
        self._flag_profile(profile)
        self._store_client_side(measured, sampler)
        self._store_gpu(gpu_sampler)
        self._collect_engine_side(target)
        status: RunStatus = "complete"
        error = death
        if death is not None:
            status = "failed"
        elif measured.load.interrupted:
            status, error = "interrupted", "interrupted"
        clock = [*self._writer.manifest.clock, ClockPair.now()]
        return self._writer.finish(status, error, clock=clock, notes=self._notes)

    def _probe_machine(self) -> None:
        """Floors that a diagnosis holds the engine against, measured while nothing else runs."""
        if self._spec.base_url is None and self._spec.server is None:
            from workbench.collectors.memory import read_bandwidth_gb_s

            floors = {"memory_read_gb_s": round(read_bandwidth_gb_s(), 2)}
            self._writer.update(machine={**self._writer.manifest.machine, **floors})

    def _profile(self, target: AnyTarget) -> ProfileSession:
        spec = self._spec
        key = {"Authorization": f"Bearer {spec.api_key}"} if spec.api_key else {}
        return ProfileSession(
            spec.profile, target.base_url, target.pids(), self._writer.path, {**spec.headers, **key}
        )

    def _flag_profile(self, profile: ProfileSession) -> None:
        """A profiler slows down what it watches: the run says so, and is no valid measurement."""
        if profile.active:
            self._reasons.append("profiled: a window of it ran under the profiler")
            self._notes += profile.problems
            self._writer.update(tags=[*self._writer.manifest.tags, "profiled"])

    def _store_gpu(self, sampler: GpuSampler) -> None:
        table = sampler.table()
        facts = {
            "gpus": sampler.gpus,
            "gpu_telemetry": sampler.reason,
            "telemetry_interval_s": INTERVAL_S,
        }
        self._writer.update(machine={**self._writer.manifest.machine, **facts})
        if table is not None:
            self._writer.write_table("telemetry_gpu", table, TELEMETRY_SCHEMA_VERSION)

    def _target(self) -> AnyTarget:
        spec = self._spec
        if spec.base_url is not None:
            from workbench.targets.attach import AttachTarget

            return AttachTarget(spec.base_url, spec.model)
        if spec.server is not None:
            from workbench.targets.command import CommandTarget

            return CommandTarget(spec.server, self._writer.path, spec.ready_timeout_s, spec.model)
        from workbench.targets.builtin import BuiltinTarget

        return BuiltinTarget(spec.engine, self._writer.path, spec.ready_timeout_s)

    def _measure(self, target: AnyTarget, progress: ProgressCallback) -> Measured:
        from workbench.load.loops import loop_runner
        from workbench.load.measure import measure

        with loop_runner() as runner:
            try:
                return runner.run(
                    measure(self._spec, target, self._nonce, on_facts=self._meet, progress=progress)
                )
            except (TargetError, InvalidInputError):
                death = target.death()
                if death is not None:
                    raise TargetError(death) from None
                raise

    def _meet(self, facts: ServerFacts, features: Features) -> None:
        """The server has told who it is: note it before the load begins."""
        info = self._writer.manifest.target
        self._writer.update(
            target=info.model_copy(update={"model": facts.model, "echo": facts.echo}),
            load={
                **self._writer.manifest.load,
                "features": {n: getattr(features, n) for n in features.__slots__},
            },
        )
        if info.kind == "command" and facts.echo is None and info.requested:
            self._notes.append("the target does not tell its configuration: taken as asked for")
            return
        self._reasons += echo_mismatches(info.requested, facts.echo)

    def _store_client_side(self, measured: Measured, sampler: CpuSampler) -> None:
        from workbench.load.record import chunks_table, requests_table

        writer, load = self._writer, measured.load
        records = [*(measured.warmup.records if measured.warmup else []), *load.records]
        requests, chunks = requests_table(records), chunks_table(records)
        writer.write_table("requests", requests, REQUESTS_SCHEMA_VERSION)
        if self._spec.keep_chunks:
            writer.write_table("chunks", chunks, CHUNKS_SCHEMA_VERSION)
        writer.write_table("telemetry_cpu", sampler.table(), TELEMETRY_SCHEMA_VERSION)
        if measured.workload_notes:
            writer.update(load={**writer.manifest.load, "workload_notes": measured.workload_notes})
        if load.interrupted:
            self._reasons.append("interrupted before its end")
        rate = self._spec.rate or self._spec.workload.arrivals.rate
        writer.write_metrics(
            compute_metrics(
                requests,
                chunks,
                start_ns=load.start_ns,
                loop=measured.loop,
                requested_rate=rate if self._spec.workload.arrivals.open_rate else None,
                slo=self._slo,
                invalid_reasons=self._reasons,
                client=_client_health(measured, sampler),
            )
        )

    def _collect_engine_side(self, target: AnyTarget) -> None:
        from workbench.targets.builtin import BuiltinTarget
        from workbench.targets.trace import collect_trace

        if isinstance(target, BuiltinTarget):
            self._notes += collect_trace(target.trace_folder, self._writer)
            if self._spec.profile is not None:
                from workbench.profiling.collect import collect_profile

                self._notes += collect_profile(target.trace_folder, self._writer)

    def _show(self, phase: str) -> None:
        if self._progress is not None:
            self._progress(BenchProgress(phase=phase))


def _check(spec: BenchSpec) -> Slo | None:
    """Find what is wrong before anything is started or stored."""
    text = spec.effective_slo
    slo = parse_slo(text) if text else None
    arrivals = spec.workload.arrivals
    if arrivals.open_rate and spec.rate is None and arrivals.rate is None:
        raise InvalidInputError(
            "request-rate",
            None,
            f"requests per second: the workload {spec.workload.name} has {arrivals.kind} arrivals",
        )
    _try(spec)
    if slo is not None and arrivals.kind == "closed" and any(key.endswith("_sched") for key, _ in slo.bounds):
        raise InvalidInputError("goodput", str(slo), "no *_sched keys: a closed loop has no schedule")
    if spec.base_url is not None:
        from workbench.targets.attach import normalise

        normalise(spec.base_url)
    elif spec.server is None:
        from engine.config import EngineConfig

        config = EngineConfig.create(**spec.engine)
        needed, room = spec.workload.max_total_tokens, config.max_model_len
        if room is not None and needed is not None and needed > room:
            raise InvalidInputError(
                "max_model_len", room, f"at least {needed}: the workload's longest request"
            )
    return slo


def _try(spec: BenchSpec) -> None:
    """Files that can't be read and lengths that can't be made are found here, not after a server has
    started."""
    from workbench.load.tokenizer import token_counter
    from workloads import ShareGptSource, build_all

    token_counter(spec.tokenizer)
    workload = spec.workload
    if isinstance(workload.source, ShareGptSource):
        # Counting the tokens of a whole file takes long; whether it is there does not.
        if not os.access(workload.source.path, os.R_OK):
            raise WorkloadError("path", workload.source.path, "a readable file")
        return
    build_all(workload, seed=spec.seed, nonce="", num_requests=1, duration_s=spec.duration_s, rate=spec.rate)


def _load_fields(spec: BenchSpec) -> dict[str, Any]:
    """How the load is sent, for the manifest. The key and headers are left out: they may be secret."""
    arrivals = spec.workload.arrivals
    return {
        "endpoint": spec.endpoint,
        "arrivals": arrivals.kind,
        "rate": spec.rate or arrivals.rate,
        "burstiness": arrivals.burstiness,
        "max_concurrency": spec.max_concurrency or arrivals.max_concurrency,
        "num_requests": spec.num_requests,
        "duration_s": spec.duration_s,
        "max_seconds": spec.max_seconds,
        "warmup_requests": spec.warmup_requests,
        "cancellation_rate": spec.cancellation_rate,
        "cancellation_delay_s": spec.cancellation_delay_s,
        "retries": spec.retries,
        "deadlines": spec.deadlines.model_dump(),
        "extra_body": spec.extra_body,
    }


def _client_health(measured: Measured, sampler: CpuSampler) -> dict[str, Any]:
    lags = sorted(measured.load.loop_lag_ms)
    return {
        "event_loop": measured.event_loop,
        "workers": measured.workers,
        "retries": measured.load.retries,
        "loop_lag_p99_ms": lags[int(0.99 * (len(lags) - 1))] if lags else None,
        "loop_lag_max_ms": lags[-1] if lags else None,
        "cpu_mean_percent": _client_cpu(measured, sampler),
        "server_cpu_mean_percent": sampler.mean("server.cpu"),
        "steal_mean_percent": sampler.mean("system.cpu_steal"),
        "cut": measured.load.cut,
    }


def _client_cpu(measured: Measured, sampler: CpuSampler) -> float | None:
    """In % of one core: this process, and the workers that sent for it."""
    own = sampler.mean("client.cpu")
    load = measured.load
    elapsed_s = (load.end_ns - load.start_ns) / 1e9
    if measured.workers == 1 or own is None or elapsed_s <= 0:
        return own
    return own + 100.0 * load.cpu_s / elapsed_s
