/*
 * The scheduler: threads that scan, a thread that decides, and the graphs that it launches.
 *
 * One execution launches at most WINDOW graphs; then a tail launch replaces it by a fresh one, which
 * finds in GPU memory what it has to go on with. Included by ring.pml.
 */

#ifdef ENDLESS /* disjoint ranges, as in the paper: each slot is looked at for certain */
#define SCANS(s) ((s) % 2 == me)
#define AT_BARRIER (looked[0] == NOBODY && looked[1] == NOBODY) /* no claim is cut off for ever */
byte earlier; /* of two that wait, the one that was claimed first */
#else          /* both threads scan all slots, so that they do contend */
#define SCANS(s) true
#define AT_BARRIER true
#endif

/* A scanning thread looks, and claims by compare-and-swap in a later step. */
proctype Scanner(byte me)
{
	byte slot;
end:
	do
	:: atomic { SCANS(0) && looked[me] == NOBODY && flag_state[0] == PREFILL_PENDING ->
		looked[me] = 0; looked_generation[me] = flag_generation[0]; looked_life[me] = life[0] }
#if SLOTS > 1
	:: atomic { SCANS(1) && looked[me] == NOBODY && flag_state[1] == PREFILL_PENDING ->
		looked[me] = 1; looked_generation[me] = flag_generation[1]; looked_life[me] = life[1] }
#endif
#if SLOTS > 2
	:: atomic { SCANS(2) && looked[me] == NOBODY && flag_state[2] == PREFILL_PENDING ->
		looked[me] = 2; looked_generation[me] = flag_generation[2]; looked_life[me] = life[2] }
#endif
	:: atomic { looked[me] != NOBODY ->
		slot = looked[me];
		if
#ifdef BUG_CAS_ALWAYS
		:: true ->
#else
		:: flag_state[slot] == PREFILL_PENDING &&
		   flag_generation[slot] == looked_generation[me] ->
#endif
			assert(!claimed[slot]);                     /* OWNER: claimed once */
			assert(looked_life[me] == life[slot]);      /* OWNER: a stale claim loses */
#ifdef ENDLESS
			if
			:: flag_state[1 - slot] != PREFILL_PROCESSING -> earlier = slot
			:: else -> earlier = 1 - slot
			fi;
#endif
			move(slot, SCHEDULER, CLAIM, NONE);
			claimed[slot] = true;
			known[slot] = true;
			assert(prompt_head[slot] == tenant[slot]);  /* PAYLOAD: it is there */
			assert(prompt_tail[slot] == tenant[slot])   /* PAYLOAD */
		:: else
		fi;
		slot = 0; looked[me] = NOBODY; looked_generation[me] = 0; looked_life[me] = 0
	}
	od
}

/* A step graph: it writes tokens, and then says that it is done. */
active proctype Graph()
{
	byte slot;
end:
	do
	:: atomic {
		step == STEP_RUNNING ->
		slot = 0;
		do
		:: slot < SLOTS && in_step[slot] ->
			assert(tenant[slot] == launched_for[slot]); /* ORDER: not a later tenant's region */
			if
			:: flag_state[slot] == PREFILL_PROCESSING ->
				output_owner[slot] = prompt_head[slot];
				output_count[slot] = 1
			:: else ->
				assert(flag_state[slot] == DECODE_PROCESSING); /* ORDER: only who runs has output */
				output_count[slot]++
			fi;
			assert(output_owner[slot] == tenant[slot] && output_count[slot] <= TOKENS_MAX); /* ORDER */
			if
			:: result[slot] = GOES_ON
			:: result[slot] = STOPPED
			:: FAILURES && flag_state[slot] == PREFILL_PROCESSING -> result[slot] = BROKEN
			fi;
			slot++
		:: slot < SLOTS && !in_step[slot] -> slot++
		:: slot == SLOTS -> break
		od;
		slot = 0;
		step = STEP_DONE
	}
	od
}

/* --- the thread that decides ------------------------------------------------------------------ */

#ifdef BUG_NO_GENERATION
#define CANCEL_SEEN(s) (cancel_word[s] != 0)
#else
#define CANCEL_SEEN(s) (cancel_word[s] == flag_generation[s])
#endif
#ifdef BUG_ABORT_RUNNING
#define UNTOUCHED(s)   true
#else
#define UNTOUCHED(s)   (step == STEP_DONE || !in_step[s]) /* no graph writes for it now */
#endif
#define ABORTABLE(s)   (known[s] && CANCEL_SEEN(s) && UNTOUCHED(s))
#define IN_STEP(s)     (in_step[s])
#define WAITING(s)     (known[s] && flag_state[s] == PREFILL_PROCESSING)
#define DECODING(s)    (known[s] && flag_state[s] == DECODE_PROCESSING)
#define PAUSED(s)      (known[s] && flag_state[s] == DECODE_PAUSED)
#define REASON(s)      ((s) < EACH -> CANCELLED : TIMED_OUT) /* fixed, to save states */

#if SLOTS == 1
#define ANY(p)   (p(0))
#define COUNT(p) (p(0))
#define FIRST(p) 0
#elif SLOTS == 2
#define ANY(p)   (p(0) || p(1))
#define COUNT(p) ((p(0)) + (p(1)))
#define FIRST(p) (p(0) -> 0 : 1)
#else
#define ANY(p)   (p(0) || p(1) || p(2))
#define COUNT(p) ((p(0)) + (p(1)) + (p(2)))
#define FIRST(p) (p(0) -> 0 : (p(1) -> 1 : 2))
#endif

/* Nothing runs, all that was produced is published, nobody's client has left. */
#define AT_REST (!adopting && step == STEP_DONE && !ANY(IN_STEP) && !ANY(ABORTABLE))

/*
 * The paper's three conditions: the scan that overlapped the last decode step saw a prefill, the
 * batch has room, the window fits the prefill and the resumed decode. Safety does not lean on the
 * first one: there a prefill may begin between any two steps, or not. Liveness does: two prefills
 * must not follow each other while a batch waits (BUG_BATCH_STARVES).
 */
#if !defined(ENDLESS) || defined(BUG_BATCH_STARVES)
#define OVERLAPPED true
#else
#define OVERLAPPED (decoded || !ANY(DECODING))
#endif
#ifdef ENDLESS
#define MAY_DECODE !ADMITS
#define IS_ENDLESS true
#else
#define MAY_DECODE true
#define IS_ENDLESS false
#endif
#define ADMITS (ANY(WAITING) && OVERLAPPED && COUNT(DECODING) < BATCH && \
	launches + 1 + (ANY(DECODING) -> 1 : 0) <= WINDOW)

#ifdef BUG_WINDOW
#define MAY_LAUNCH (launches <= WINDOW)
#else
#define MAY_LAUNCH (launches < WINDOW)
#endif

#ifdef BUG_PAUSED_STARVES
bool merging; /* who is paused goes on when the new request joins, and only then */
#define MAY_RESUME merging
#else
#define MAY_RESUME true
#endif

inline let_go(s)
{
	known[s] = false; result[s] = GOES_ON;
#ifdef BUG_ABORT_RUNNING
	if /* the graph that runs has not heard of it */
	:: step == STEP_DONE -> in_step[s] = false; launched_for[s] = 0
	:: else
	fi;
#else
	in_step[s] = false; launched_for[s] = 0;
#endif
	if
	:: admitting == s -> admitting = NOBODY
	:: else
	fi
}

inline take_along(s)
{
	in_step[s] = true;
	launched_for[s] = tenant[s]
}

inline launch()
{
	assert(step == STEP_DONE);   /* WINDOW: one step at a time */
	launches++;
	assert(launches <= WINDOW);  /* WINDOW */
	step = STEP_RUNNING
}

inline publish(s)
{
	if
	:: result[s] == BROKEN ->
		move(s, SCHEDULER, ABORT, FAILED);
		let_go(s)
	:: result[s] == SAID_STOP ->
		move(s, SCHEDULER, COMPLETE, STOP);
		let_go(s)
	:: result[s] == SAID_LENGTH ->
		move(s, SCHEDULER, COMPLETE, LENGTH);
		let_go(s)
	:: else ->
		if
		:: flag_state[s] == PREFILL_PROCESSING -> move(s, SCHEDULER, FIRST_TOKEN, NONE)
		:: else -> move(s, SCHEDULER, TOKENS, NONE)
		fi;
		flag_tokens[s]++;
		assert(flag_tokens[s] == output_count[s]); /* ORDER: each once, none unwritten */
#ifdef BUG_PAUSED_STARVES
		merging = true;
#endif
		if
		:: result[s] == STOPPED -> result[s] = SAID_STOP
		:: result[s] == GOES_ON && flag_tokens[s] == TOKENS_MAX -> result[s] = SAID_LENGTH
		:: else -> in_step[s] = false; launched_for[s] = 0
		fi
	fi
}

/* A tail launch: whatever lives in shared memory is gone, the step graph has ended. */
inline relaunch()
{
	launches = 0;
	admitting = NOBODY;
	decoded = false;
	adopting = true;
	slot = 0;
	do
	:: slot < SLOTS ->
		known[slot] = false;
#ifdef BUG_LOST_STEP
		in_step[slot] = false; launched_for[slot] = 0; result[slot] = GOES_ON;
#endif
		slot++
	:: else -> break
	od;
	slot = 0;
	looked[0] = NOBODY; looked_generation[0] = 0; looked_life[0] = 0;
	looked[1] = NOBODY; looked_generation[1] = 0; looked_life[1] = 0
}

#ifdef BUG_FORGETS_PAUSED
#define ADOPTS_PAUSED(s) false
#else
#define ADOPTS_PAUSED(s) (flag_state[s] == DECODE_PAUSED)
#endif

inline adopt()
{
	adopting = false;
	slot = 0;
	do
	:: slot < SLOTS ->
		known[slot] = (flag_state[slot] == PREFILL_PROCESSING ||
			flag_state[slot] == DECODE_PROCESSING || ADOPTS_PAUSED(slot));
		slot++
	:: else -> break
	od;
	slot = 0
}

active proctype Control()
{
	byte slot;
end:
	do
	:: atomic { !adopting && ANY(ABORTABLE) -> /* a client has left: honoured within one step */
		slot = FIRST(ABORTABLE);
		assert(asked[BOOK(slot / EACH, tenant[slot])]); /* CONSERVE: nobody else's cancel */
		move(slot, SCHEDULER, ABORT, REASON(slot));
		let_go(slot);
		slot = 0 }
#ifdef BUG_TOKEN_EARLY
	:: atomic { !adopting && ANY(IN_STEP) ->
#else
	:: atomic { !adopting && step == STEP_DONE && ANY(IN_STEP) ->
#endif
		slot = FIRST(IN_STEP);
		publish(slot);
		slot = 0 }
	:: atomic { AT_REST && admitting == NOBODY && ANY(PAUSED) && MAY_RESUME ->
		slot = FIRST(PAUSED);
		move(slot, SCHEDULER, RESUME, NONE);
#ifdef BUG_PAUSED_STARVES
		merging = ANY(PAUSED);
#endif
		slot = 0 }
	:: atomic { AT_REST && admitting == NOBODY && !ANY(PAUSED) && ADMITS ->
		if
#ifdef ENDLESS /* first come, first served: without it, somebody may wait for ever */
		:: admitting = (WAITING(earlier) -> earlier : FIRST(WAITING))
#else          /* in any order, which includes that one */
		:: WAITING(0) -> admitting = 0
#if SLOTS > 1
		:: WAITING(1) -> admitting = 1
#endif
#if SLOTS > 2
		:: WAITING(2) -> admitting = 2
#endif
#endif
		fi }
	:: atomic { AT_REST && admitting != NOBODY && ANY(DECODING) ->
		slot = FIRST(DECODING);
		move(slot, SCHEDULER, PAUSE, NONE);
		slot = 0 }
	:: atomic { AT_REST && admitting != NOBODY && !ANY(DECODING) && MAY_LAUNCH ->
		take_along(admitting);
		admitting = NOBODY;
#ifdef BUG_PAUSED_STARVES
		merging = false;
#endif
		decoded = false;
		launch() }
	:: atomic { AT_REST && admitting == NOBODY && !ANY(PAUSED) && ANY(DECODING) && MAY_DECODE &&
		MAY_LAUNCH ->
		slot = 0;
		do
		:: slot < SLOTS && DECODING(slot) -> take_along(slot); slot++
		:: slot < SLOTS && !DECODING(slot) -> slot++
		:: slot == SLOTS -> break
		od;
		slot = 0;
		decoded = IS_ENDLESS;
		launch() }
	:: atomic { !adopting && step == STEP_DONE && launches > 0 && AT_BARRIER -> /* when full, or at any time */
#ifdef BUG_LOST_RELAUNCH
		if
		:: launches == WINDOW -> break /* the execution ends, and none follows */
		:: else
		fi;
#endif
		relaunch() }
	:: atomic { adopting -> adopt() }
	od
#ifdef BUG_LOST_RELAUNCH
	; adopting = true /* nobody scans either */
#endif
}
