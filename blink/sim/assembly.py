"""Puts runs together: clients, front ends, engines, and where their control planes live."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from blink.model.features import constant
from blink.model.interference import QUIET, host_pressure
from blink.model.policy import KvLedger, LookaheadLedger, PrefixCache
from blink.model.random import RandomStreams
from blink.model.setup import RunSetup, graph_cache
from blink.model.speculation import tokens_of_steps
from blink.model.step_table import step_time
from blink.ring_protocol.front_end import FrontEnd, TokenReader
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.loopback import LoopbackMemory
from blink.ring_protocol.ring import SchedulerRing
from blink.ring_protocol.window import LaunchWindow
from blink.sim.batch import Sequence
from blink.sim.clock import TIE_MAX, Clock, Process
from blink.sim.engine import Engine, OutputSink
from blink.sim.entities.api_server import ApiCosts, ApiServer
from blink.sim.entities.client import Book, Clients, Server
from blink.sim.entities.dpu import Dpu, DpuCosts
from blink.sim.entities.gpu import GpuScheduler, LaunchCosts
from blink.sim.entities.host import HostEngine
from blink.sim.memory import LinkCosts, RingInbox, SimTransport
from blink.sim.noise import ThreadNoise
from blink.sim.recorder import Recorder
from blink.sim.world import sequences


@dataclass(slots=True)
class Replica:
    """One server. Exactly one of ``gpu`` and ``host`` schedules."""

    recorder: Recorder
    engine: Engine
    server: Dpu | ApiServer
    process: Process
    dpu: Dpu | None = None
    gpu: GpuScheduler | None = None
    api: ApiServer | None = None
    host: HostEngine | None = None


@dataclass(slots=True)
class Assembly:
    """A run ready to start."""

    env: Clock
    replicas: list[Replica]
    clients: Clients

    def run(self) -> None:
        """Start the clients, then the schedulers, and let time pass until nothing is left."""
        for process in (self.clients.run(), *(each.process for each in self.replicas)):
            self.env.process(process)
        self.env.run()


def assemble(setup: RunSetup, streams: RandomStreams, progress: Callable[[int], None]) -> Assembly:
    """Build the processes of ``setup``; nothing has happened yet."""
    env = Clock(streams("ties"))
    world = sequences(setup, streams)
    only = replica_of(setup, streams, env, world)
    clients = clients_of(setup, env, only.server, only.recorder, world, streams, progress)
    only.engine.on_leave = clients.tokens_suffice
    return Assembly(env, [only], clients)


def replica_of(
    setup: RunSetup, streams: RandomStreams, env: Clock, world: list[Sequence]
) -> Replica:
    """Build one server of ``setup``; its engine's ``on_leave`` is still to be set."""
    recorder = Recorder(setup.workload)
    build = _with_dpu if setup.plane.processes == 0 else _with_host
    return build(setup, streams, env, recorder, world)


def _engine(
    setup: RunSetup, streams: RandomStreams, env: Clock, recorder: Recorder, sink: OutputSink
) -> Engine:
    timing = step_time(setup)
    prefixes = None
    if setup.shares_prefixes:
        prefixes = PrefixCache(setup.workload.hash_tokens, setup.kv_block_tokens)
    kv = KvLedger(setup.kv_blocks_total, setup.kv_block_tokens, prefixes)
    speculation = setup.speculation
    if speculation is not None:
        kv = LookaheadLedger(
            setup.kv_blocks_total, setup.kv_block_tokens, speculation.draft_tokens + 1, prefixes
        )
    # A poll that cannot report a whole batch leaves tokens to later ones: those are made for real.
    polls_whole = setup.front_end.slots_per_poll_max >= setup.limits.batch_max
    skips = setup.fast_forward and (polls_whole or setup.plane.processes > 0)
    return Engine(
        env,
        timing,
        kv,
        recorder,
        sink,
        fast_forward=skips,
        pace=_pace(setup, streams),
        draft_tokens=speculation.draft_tokens if speculation else 0,
        offload=setup.kv_offload,
    )


def _pace(setup: RunSetup, streams: RandomStreams) -> Callable[[int, int], list[int]] | None:
    """Draws a request's accepted drafts, from a stream of its own: the world, not the system."""
    speculation = setup.speculation
    if speculation is None:
        return None
    return lambda request, tokens: tokens_of_steps(
        speculation, tokens, streams(f"speculation.{request}")
    )


def clients_of(
    setup: RunSetup,
    env: Clock,
    server: Server,
    book: Book,
    world: list[Sequence],
    streams: RandomStreams,
    progress: Callable[[int], None],
) -> Clients:
    """All clients of a run, before ``server``."""
    ties = streams("ties.clients").integers(0, TIE_MAX, len(world), endpoint=True)
    return Clients(
        env,
        server,
        book,
        world.__getitem__,
        ties=ties.tolist(),
        one_way_ns=setup.link.client_latency_ns,
        concurrency=setup.workload.concurrency,
        think_ns=setup.workload.think_ns,
        progress=progress,
    )


def _with_dpu(
    setup: RunSetup,
    streams: RandomStreams,
    env: Clock,
    recorder: Recorder,
    world: list[Sequence],
) -> Replica:
    """Blink: front end on the DPU, scheduler on the GPU, the ring between them, no host."""
    ring = setup.ring
    geometry = Geometry(ring.slots, ring.prompt_tokens_max, ring.output_tokens_max)
    memory = LoopbackMemory.formatted(geometry, payload=False)
    inbox = RingInbox(geometry)
    transport = SimTransport(
        env,
        memory,
        link_costs(setup),
        published=inbox.published,
        extra_delay_ns=_visibility_delay(setup, streams),
    )
    reader = TokenReader(
        setup.front_end.poll_interval_min_ns,
        setup.front_end.poll_interval_max_ns,
        setup.front_end.slots_per_poll_max,
    )
    front_end = FrontEnd(geometry, reader, payload=False)
    dpu = Dpu(env, front_end, transport, memory, dpu_costs(setup), recorder)
    engine = _engine(setup, streams, env, recorder, dpu)
    dpu.catch_up = engine.catch_up
    graphs = graph_cache(setup)
    assert graphs is not None
    gpu = GpuScheduler(
        env,
        engine,
        SchedulerRing(memory, geometry),
        inbox,
        LaunchWindow(setup.window_launches_max),
        launch_costs(setup),
        setup.limits,
        graphs,
        world.__getitem__,
    )
    return Replica(recorder, engine, dpu, gpu.run(), dpu=dpu, gpu=gpu)


def _with_host(
    setup: RunSetup,
    streams: RandomStreams,
    env: Clock,
    recorder: Recorder,
    world: list[Sequence],
) -> Replica:
    """A CPU-driven server: an API process and an engine process under the host's pressure."""
    plane = setup.plane
    pressure = host_pressure(setup.host, plane, setup.interference)
    speed = setup.host.speed
    if plane.front_end == "dpu":  # host_resident: only the scheduler is on the host
        quiet = host_pressure(setup.host, plane, QUIET)
        api_noise = ThreadNoise(replace(quiet, jitter_sigma=0.0), 1.0, streams("host.api"))
    else:
        api_noise = ThreadNoise(pressure, speed, streams("host.api"))
    engine_noise = ThreadNoise(pressure, speed, streams("host.engine"))
    api = ApiServer(env, api_costs(setup), api_noise, recorder)
    engine = _engine(setup, streams, env, recorder, api)
    host = HostEngine(
        env,
        engine,
        plane,
        engine_noise,
        setup.limits,
        graph_cache(setup),
        prefix_caching=setup.prefix_caching,
        lookup_ns_per_block=constant("prefix_caching", "host_lookup_ns_per_block"),
    )
    api.engine = host
    return Replica(recorder, engine, api, host.run(), api=api, host=host)


def _visibility_delay(setup: RunSetup, streams: RandomStreams) -> Callable[[], int]:
    limit = setup.faults.extra_visibility_ns_max
    if not limit:
        return lambda: 0
    rng = streams("faults.visibility")
    return lambda: int(rng.integers(0, limit, endpoint=True))


def launch_costs(setup: RunSetup) -> LaunchCosts:
    """What the launch mode costs on this GPU, and a prefix cache's look-ups before a prefill."""
    costs = _launch_costs(setup)
    if setup.shares_prefixes:
        lookup_ns = round(constant("prefix_caching", "gpu_lookup_ns"))
        costs = replace(costs, prefill_step_ns=costs.prefill_step_ns + lookup_ns)
    return costs


def _launch_costs(setup: RunSetup) -> LaunchCosts:
    gpu = setup.gpu
    # Measured on an H200 (facts of 2026-11-30): about 8 us a decode step, nothing on prefill.
    chain_ns = 2 * gpu.tail_launch_ns
    # A scheduler on each GPU (paper section 7): the first decides, the others learn of it.
    peers_ns = gpu.peer_signal_ns if setup.parallel.gpus > 1 else 0
    if setup.launch_mode == "tail_chain":
        return LaunchCosts(
            step_ns=chain_ns + peers_ns,
            prefill_step_ns=chain_ns + peers_ns,
            tail_ns=gpu.tail_launch_ns,
            scan_ns=gpu.scan_ns,
            prefill_slowdown=1.0,
            decode_slowdown=1.0,
            windowed=False,
        )
    chained = setup.launch_mode == "auto"
    step_ns = gpu.device_launch_ns + gpu.completion_poll_ns + peers_ns
    return LaunchCosts(
        step_ns=step_ns,
        prefill_step_ns=chain_ns + peers_ns if chained else step_ns,
        tail_ns=gpu.tail_launch_ns,
        scan_ns=gpu.scan_ns + gpu.claim_ns,
        prefill_slowdown=1.0 if chained else gpu.resident_prefill_slowdown,
        decode_slowdown=gpu.resident_decode_slowdown,
        prefill_relaunches=chained,
    )


def link_costs(setup: RunSetup) -> LinkCosts:
    """The link's SKU as the transport uses it."""
    link = setup.link
    return LinkCosts(
        post_ns=link.post_ns + setup.dpu.doorbell_ns,
        per_op_ns=link.per_op_ns,
        one_way_ns=link.write_latency_ns,
        bandwidth_bytes_s=link.bandwidth_bytes_s,
        outstanding_max=link.max_outstanding,
    )


def dpu_costs(setup: RunSetup) -> DpuCosts:
    """The DPU's SKU and the front end's settings as the twin uses them."""
    dpu, link, front_end = setup.dpu, setup.link, setup.front_end
    metadata_ns = round(setup.ring.slots * 16 * 1e9 / link.bandwidth_bytes_s)
    tokens_read_ns = dpu.doorbell_ns + link.read_latency_ns
    return DpuCosts(
        tokenizer_cores=front_end.tokenizer_cores,
        streaming_cores=front_end.streaming_cores,
        http_request_ns=dpu.http_request_ns,
        tokenize_ns_per_token=dpu.tokenize_ns_per_token,
        stream_ns_per_token=dpu.detokenize_sse_ns_per_token,
        doorbell_ns=dpu.slot_search_ns + dpu.doorbell_ns,
        read_ns=dpu.doorbell_ns
        + link.read_latency_ns
        + metadata_ns
        + dpu.poll_parse_ns
        + tokens_read_ns,
        client_one_way_ns=link.client_latency_ns,
        queue_max=front_end.queue_max,
    )


def api_costs(setup: RunSetup) -> ApiCosts:
    """The profile's API process; for ``host_resident`` the DPU's front end as one fast process."""
    plane = setup.plane
    if plane.front_end == "dpu":
        dpu = setup.dpu
        return ApiCosts(
            request_ns=dpu.http_request_ns,
            tokenize_ns_per_token=dpu.tokenize_ns_per_token,
            step_ns=dpu.poll_parse_ns,
            token_ns=dpu.detokenize_sse_ns_per_token // setup.front_end.streaming_cores,
            chunk_ns=0,
            hop_ns=setup.link.write_latency_ns + setup.link.post_ns,
            client_request_ns=0,
            client_chunk_ns=0,
            client_one_way_ns=setup.link.client_latency_ns,
            merge=False,
        )
    return ApiCosts(
        request_ns=plane.api_request_ns,
        tokenize_ns_per_token=plane.api_tokenize_ns_per_token,
        step_ns=plane.api_step_ns,
        token_ns=plane.api_token_ns,
        chunk_ns=plane.api_chunk_ns,
        hop_ns=plane.output_hop_ns,
        client_request_ns=plane.client_request_ns,
        client_chunk_ns=plane.client_chunk_ns,
        client_one_way_ns=setup.link.client_latency_ns,
        merge=plane.api_merge,
    )
