"""One small ring with everything that acts on it, and all that can happen to it next.

The front ends, the ring, the launch window, the policy and the scheduler are the real ones; the
machine below them is :mod:`blink.testing.explorer.machine`. It is moved by one action at a
time; copying and comparing it is done in :mod:`blink.testing.explorer.copies`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from blink.model.policy import GraphCache, Limits
from blink.model.policy.blocks import BlockPool
from blink.model.scheduler import Phase, ResidentScheduler
from blink.ring_protocol.constants import HEADER_BYTES, SLOT_METADATA_BYTES, TOKEN_BYTES
from blink.ring_protocol.descriptor import Sampling, cancel_word
from blink.ring_protocol.errors import ProtocolViolation
from blink.ring_protocol.front_end import BackPressure, FrontEnd, TokenReader, Update
from blink.ring_protocol.ports import Publish, Read
from blink.ring_protocol.ring import SchedulerRing
from blink.ring_protocol.slot import STATE_MASK, unpack
from blink.ring_protocol.states import OWNER_OF, Event, Outcome, State, Writer
from blink.ring_protocol.window import LaunchWindow
from blink.testing.explorer.machine import Broken, Gpu, Link, Memory, token_of
from blink.testing.explorer.parts import ATTACH_TAG, Action, Book, Client, Config

_OWN: Final = frozenset({Phase.WAIT, Phase.RESUME, Phase.LAUNCH, Phase.RELAUNCH})


class World:
    """See the module. A new one is an empty ring; :meth:`actions` says what may happen next."""

    def __init__(
        self, config: Config, scheduler: Callable[..., ResidentScheduler] = ResidentScheduler
    ) -> None:
        self.config = config
        geometry = config.geometry
        self.memory = Memory(geometry)
        self.books = [Book() for _ in range(config.requests)]
        self.clients = [self._client(number) for number in range(config.front_ends)]
        blocks = BlockPool(config.blocks, 1)
        self.gpu = Gpu(blocks, config.window)
        ring = SchedulerRing(self.memory, geometry)
        limits = Limits(config.batch, config.batch, 8)
        self.scheduler = scheduler(
            self.memory,
            ring,
            self.gpu,
            blocks,
            limits,
            GraphCache(config.batch, 8),
            LaunchWindow(config.window),
        )
        self.gpu.state = self.scheduler.state
        self.seen: list[tuple[int, int]] = []  # (slot, pending word): what threads saw, unclaimed
        self.budget = config.disturbances
        self.edges: list[tuple[State, Event]] = []  # of the table, taken by the last action

    def _client(self, number: int) -> Client:
        config, link = self.config, Link(self.memory)
        self.memory.links.append(link)
        todo = list(range(number, config.requests, config.front_ends))
        return Client(self._front_end(number), link, todo)

    def _front_end(self, number: int) -> FrontEnd:
        share = self.config.slots // self.config.front_ends
        own = range(number * share, (number + 1) * share)
        return FrontEnd(self.config.geometry, TokenReader(1, 1, self.config.slots), slots=own)

    # --- what may happen ---------------------------------------------------------------------

    def actions(self) -> list[Action]:
        """All that may happen next.

        What is the scheduler's alone, for it neither reads what others write nor writes what they
        read, has been done already (:meth:`_settle`): any order of it and theirs leads to the same.
        """
        if self.seen and self.config.reduced:
            return list(self._scheduler_actions())
        found: list[Action] = []
        for number, client in enumerate(self.clients):
            own = list(self._client_actions(number, client))
            # With something under way, no other's doing can give this front end one more choice.
            busy = bool(client.link.posted or client.link.answers) and self.config.reduced
            if busy and not any(self._meets_the_scheduler(action) for action in own):
                return own
            found += own
        found += self._scheduler_actions()
        return found

    def _meets_the_scheduler(self, action: Action) -> bool:
        """Whether the scheduler could do something that this action changes, or the reverse."""
        name, number, _ = action
        if name == "answer":
            return self.merged and not self.clients[number].attached  # cancels what it finds
        if name != "land":
            return name == "sample" or (self.merged and name in ("submit", "cancel"))
        link = self.clients[number].link
        ordered = link.ordered()
        if ordered is None:
            return True
        if isinstance(ordered, Read):
            return not self.clients[number].attached  # tokens that are read are never written again
        geometry = self.config.geometry
        slot = geometry.slot_of_flag(ordered.remote)
        if slot is not None:
            return isinstance(ordered, Publish) and unpack(ordered.value).state is not State.EMPTY
        slots = range(self.config.slots)
        [slot] = [each for each in slots if geometry.cancel_offset(each) == ordered.remote]
        return OWNER_OF[unpack(self._flag(slot)).state] is Writer.SCHEDULER

    def _client_actions(self, number: int, client: Client) -> Iterator[Action]:
        front_end, link = client.front_end, client.link
        if client.attached and client.todo and front_end.slots.free_count:
            yield ("submit", number, client.todo[0])
            if self.merged and self._may("crash"):
                yield ("lose", number, client.todo[0])
        if "cancel" in self.config.faults:
            for tracked in front_end.requests:
                if not tracked.abort_asked:
                    yield ("cancel", number, tracked.request_id)
        if link.posted:
            yield ("land", number, 0)
        elif client.attached and not link.answers and self._news(client):
            yield ("sample", number, 0)
        if link.answers:
            yield ("answer", number, 0)
        if self._may("repeat") and client.last and client.attached:
            yield ("repeat", number, 0)
        if self._may("crash") and (len(front_end.requests) or link.posted or not client.attached):
            yield ("crash", number, 0)

    def _news(self, client: Client) -> bool:
        """Whether a bulk read now would tell the front end anything: one that would not is no step.

        One read is under way at a time, so one that finds nothing cannot come late either.
        """
        reader = client.front_end.reader
        metadata = self.memory.peek(HEADER_BYTES, self.config.geometry.metadata_bytes)
        return bool(reader.watched) and reader.has_news(metadata)

    def _scheduler_actions(self) -> Iterator[Action]:
        if self.scheduler.state.phase is not Phase.SCAN:
            yield ("step", 0, 0)
            return
        for place, (slot, _) in enumerate(self.seen):
            yield ("claim", place, slot)
        if len(self.seen) < self.config.threads:
            for slot in range(self.config.slots):
                word = self._flag(slot)
                if word & STATE_MASK == State.PREFILL_PENDING:
                    yield ("see", slot, 0)
        if not self.seen:
            yield ("meet", 0, 0)
        for slot in range(self.config.slots) if self._may("farewell") else ():
            now = unpack(self._flag(slot))
            if now.generation > 1 and OWNER_OF[now.state] is Writer.SCHEDULER:
                yield ("farewell", slot, 0)
        quiet = self.scheduler.state.graph < 0 and not self.seen
        if quiet and self.scheduler.window.launches and self._may("relaunch"):
            yield ("relaunch", 0, 0)

    def _flag(self, slot: int) -> int:
        return self.memory.load_relaxed(self.config.geometry.metadata_offset(slot))

    def _settle(self) -> None:
        """Let the scheduler do what only it can see."""
        scheduler, state = self.scheduler, self.scheduler.state
        while True:
            if state.phase is Phase.WAIT and state.graph >= 0 and not self.gpu.done:
                self.gpu.finish()
            elif state.phase in _OWN or self._at_end():
                scheduler.step()
            else:
                return

    def _at_end(self) -> bool:
        """Whether the phase's next step only ends it."""
        state = self.scheduler.state
        if state.phase is Phase.CANCEL:
            return state.cursor >= len(state.waiting) + len(state.running)
        return state.phase is Phase.PUBLISH and state.cursor >= len(state.filling or state.running)

    # --- doing it ----------------------------------------------------------------------------

    def do(self, action: Action) -> str:
        """Let ``action`` happen; say in words what it was.

        Raises Broken, naming the invariant, if something does not hold any more.
        """
        name, number, request = action
        try:
            said: str = getattr(self, f"_{name}")(number, request)
            self._settle()
        except ProtocolViolation as violation:
            raise Broken(f"SLOT: {type(violation).__name__}: {violation}") from violation
        except AssertionError as error:
            raise Broken(f"WORK: an assertion of the code: {error}") from error
        self._check_moves()
        return said

    def _submit(self, number: int, request: int) -> str:
        client = self.clients[number]
        output = self.config.output_of(request)
        stop = token_of(request, output - 1) if request % 2 == 0 else token_of(request, 99)
        result = client.front_end.submit(
            request,
            1,
            output + (request % 2 == 0),
            now_ns=request,
            prompt=(request + 1).to_bytes(TOKEN_BYTES, "little"),
            sampling=Sampling(stop_token=stop),
        )
        if isinstance(result, BackPressure):
            raise Broken(f"SLOT: front end {number} has a free slot and finds none")
        client.todo.remove(request)
        self.books[request].submitted = True
        self._post(client)
        return f"front end {number} submits request {request} to slot {result.slot}"

    def _cancel(self, number: int, request: int) -> str:
        client = self.clients[number]
        self.books[request].asked = client.front_end.cancel(request)
        self._post(client)
        return f"the client of request {request} leaves"

    def _land(self, number: int, request: int) -> str:
        client = self.clients[number]
        said = client.link.land()
        if client.attached:
            self._take_tokens(client)
        return f"front end {number}: {said}"

    def _take_tokens(self, client: Client) -> None:
        """Tokens that were read are handed over at once: nobody writes those bytes any more."""
        for completion in client.link.poll(len(client.link.answers)):
            for update in client.front_end.on_completion(completion):
                self._receive(update)
        self._post(client)

    def _sample(self, number: int, request: int) -> str:
        """A bulk read is posted, and looks; its answer may be long on its way."""
        client = self.clients[number]
        client.link.post([client.front_end.read_metadata(0)])
        said = f"front end {number}: {client.link.land()}"
        # Merged: whatever it did before it took the answer it might do before the read, or after.
        return f"{said}, {self._answer(number, request)}" if self.merged else said

    def _answer(self, number: int, request: int) -> str:
        client = self.clients[number]
        [completion] = client.link.poll(1)
        if completion.tag == ATTACH_TAG:
            assert completion.data is not None
            client.front_end.attach(completion.data)
            client.attached = True
        else:
            if completion.tag in client.front_end._metadata_reads:
                self._remember(client, bytes(completion.data or b""))
            for update in client.front_end.on_completion(completion):
                self._receive(update)
        self._post(client)
        return f"front end {number} takes the answer"

    def _remember(self, client: Client, metadata: bytes) -> None:
        """Keep what may come again, if it could tell the front end anything then.

        Until a slot is used again the front end knows all that its last answer says.
        """
        states = metadata[::SLOT_METADATA_BYTES]
        again = self._may("repeat") and client.todo and State.DECODE_COMPLETED in states
        client.last = metadata if again else None

    def _repeat(self, number: int, request: int) -> str:
        client = self.clients[number]
        assert client.last is not None
        for update in client.front_end.on_metadata(client.last, 0):
            self._receive(update)
        client.last = None
        self._spend()
        self._post(client)
        return f"front end {number} takes an old answer again"

    def _lose(self, number: int, request: int) -> str:
        """A submission is posted, and the front end crashes before anything of it has landed."""
        client = self.clients[number]
        client.todo.remove(request)
        self.books[request].submitted = True
        self.books[request].outcome = Outcome.FAILED
        return f"request {request} is lost: {self._crash(number, request)}"

    def _farewell(self, slot: int, request: int) -> str:
        generation = unpack(self._flag(slot)).generation
        late = cancel_word(generation - 1, Outcome.CANCELLED)
        self.memory.put(self.config.geometry.cancel_offset(slot), late, Writer.FRONT_END)
        self._spend()
        return f"a cancel of slot {slot}'s earlier request lands"

    def _may(self, fault: str) -> bool:
        return self.budget > 0 and fault in self.config.faults

    def _spend(self) -> None:
        self.budget -= 1
        if not self.budget:
            for client in self.clients:
                client.last = None

    def _crash(self, number: int, request: int) -> str:
        """What has not landed never will; a new process takes over the same slots."""
        client = self.clients[number]
        for tracked in client.front_end.requests:
            self.books[tracked.request_id].outcome = Outcome.FAILED
        client.link.posted.clear()
        client.link.answers.clear()
        client.front_end = self._front_end(number)
        client.attached = False
        client.last = None
        self._spend()
        geometry = self.config.geometry
        client.link.post([Read(HEADER_BYTES, geometry.metadata_bytes, ATTACH_TAG)])
        return f"front end {number} crashes, and a new one reads the metadata"

    def _see(self, slot: int, request: int) -> str:
        self.seen.append((slot, self._flag(slot)))
        return f"a thread sees slot {slot} pending"

    def _claim(self, place: int, slot: int) -> str:
        slot, word = self.seen.pop(place)
        won = self.scheduler.claim(slot, word)
        state = self.scheduler.state
        held = [each.slot for each in state.claimed + state.waiting + state.running + state.filling]
        if held.count(slot) > 1:
            raise Broken(f"OWNER: slot {slot} is claimed twice")
        return f"a thread {'claims' if won else 'comes too late for'} slot {slot}"

    def _meet(self, number: int, request: int) -> str:
        self.scheduler.end_scan()
        return "all threads have scanned"

    def _relaunch(self, number: int, request: int) -> str:
        self.scheduler.relaunch()
        self._spend()
        return "the scheduler is relaunched early"

    def _step(self, number: int, request: int) -> str:
        phase = self.scheduler.step()
        while self.coarse and self.scheduler.state.phase is phase:
            self.scheduler.step()
        if phase is Phase.CANCEL and self.coarse:
            self._check_cancels()
        return f"the scheduler: {phase.name.lower()}"

    def _check_cancels(self) -> None:
        """Every cancel that had landed has been honoured: only then is the next graph launched."""
        state, geometry = self.scheduler.state, self.config.geometry
        for each in state.waiting + state.running + state.filling:
            word = self.memory.load_relaxed(geometry.cancel_offset(each.slot))
            if word == cancel_word(each.generation, Outcome.CANCELLED):
                raise Broken(f"WORK: slot {each.slot} goes on, though its client has left")

    def _post(self, client: Client) -> None:
        """Ring the doorbell. Merged, what was posted lands: see :class:`Config`."""
        while ops := client.front_end.take_ops(16):
            client.link.post(ops)
        if not self.merged:
            return
        while client.link.ordered() is not None:
            client.link.land()
        if client.link.answers:
            self._take_tokens(client)

    # --- what must hold ----------------------------------------------------------------------

    def _receive(self, update: Update) -> None:
        book = self.books[update.request_id]
        if book.outcome is not None:
            raise Broken(f"CONSERVE: news of request {update.request_id}, which has ended")
        if update.first != book.received:
            raise Broken(f"ORDER: token {update.first} after {book.received} tokens")
        ids = memoryview(update.ids or b"").cast("B")
        for index in range(update.tokens):
            at = index * TOKEN_BYTES
            token = int.from_bytes(ids[at : at + TOKEN_BYTES], "little")
            if token != token_of(update.request_id, update.first + index):
                raise Broken(
                    f"ORDER: request {update.request_id} receives {token} as its token "
                    f"{update.first + index}"
                )
        book.received += update.tokens
        if update.outcome is not None:
            if update.outcome is not book.written:
                raise Broken(f"CONSERVE: {update.outcome.name} was never written")
            book.outcome = update.outcome

    def _check_moves(self) -> None:
        """Every flag word that this action wrote."""
        moves, self.memory.moves = self.memory.moves, []
        self.edges = [(unpack(before).state, event) for _, before, _, event in moves]
        for slot, _, word, event in moves:
            request = int.from_bytes(
                self.memory.peek(self.config.geometry.request_id_offset(slot), 8), "little"
            )
            book = self.books[request]
            if event is Event.CLAIM:
                book.claims += 1
                if book.claims > 1:
                    raise Broken(f"OWNER: request {request} is claimed twice")
            if event in (Event.COMPLETE, Event.ABORT):
                book.written = unpack(word).outcome
                if event is Event.ABORT and not book.asked and not self._orphaned(book):
                    raise Broken(f"CONSERVE: request {request} is aborted, and nobody asked")

    def _orphaned(self, book: Book) -> bool:
        return book.outcome is Outcome.FAILED

    @property
    def merged(self) -> bool:
        """Whether posting and landing are one step."""
        return self.config.reduced and self.coarse

    @property
    def coarse(self) -> bool:
        """Whether every front end watches a single slot.

        It cannot tell then whether tokens of other slots were published before or after its own:
        a whole batch's are published, and cancels looked for, in one step.
        """
        return self.config.slots == self.config.front_ends

    @property
    def done(self) -> bool:
        """Every request has ended, every slot is free, nothing is under way."""
        clients = self.clients
        return (
            all(book.outcome is not None for book in self.books if book.submitted)
            and not any(client.todo or client.link.posted for client in clients)
            and all(client.attached and not client.front_end.orphans for client in clients)
            and self.scheduler.idle
        )

    @property
    def ending(self) -> tuple[str, ...]:
        """How each request ended for its client, and how many tokens it had got."""
        return tuple(f"{book.outcome and book.outcome.name}:{book.received}" for book in self.books)

    def check_done(self) -> None:
        """Raise Broken if something was kept that should have been given back."""
        blocks = self.scheduler.blocks
        if blocks.blocks_free != blocks.blocks_total or blocks.tables:
            raise Broken(f"KV: {blocks.blocks_total - blocks.blocks_free} blocks leaked")
        for slot in range(self.config.slots):
            word = self.memory.load_relaxed(self.config.geometry.metadata_offset(slot))
            if word & STATE_MASK != State.EMPTY:
                raise Broken(f"SLOT: slot {slot} is left in {unpack(word).state.name}")
