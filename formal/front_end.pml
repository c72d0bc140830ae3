/*
 * A front end: it submits, cancels, reads in bulk, releases, crashes and starts again.
 *
 * It is the only writer of its slots' EMPTY and DECODE_COMPLETED words, and it writes through its
 * queue pair alone. Included by ring.pml.
 */

#define ROOM(count) (len(queue_pair[front_end]) + (count) <= DEPTH)

inline post_submit(slot)
{
	used[front_end] = (used[front_end] < WANTED(front_end) -> used[front_end] + 1 : 1);
	view[slot] = ACTIVE;
#ifdef BUG_NO_FLAG_GENERATION
	view_generation[slot] = 1;
#elif defined(ENDLESS)
	view_generation[slot] = 1 + view_generation[slot] % GENERATIONS;
	ended[BOOK(front_end, used[front_end])] = false;
#else
	view_generation[slot]++;
#endif
	view_tokens[slot] = 0;
	view_request[slot] = used[front_end];
	if /* writes before a publish may land in either order */
#ifdef BUG_FLAG_FIRST
	:: queue_pair[front_end]!PUBLISH_SUBMIT, slot, view_generation[slot], used[front_end];
	   queue_pair[front_end]!WRITE_HEAD, slot, 0, used[front_end];
	   queue_pair[front_end]!WRITE_TAIL, slot, 0, used[front_end]
#else
	:: queue_pair[front_end]!WRITE_HEAD, slot, 0, used[front_end];
	   queue_pair[front_end]!WRITE_TAIL, slot, 0, used[front_end];
	   queue_pair[front_end]!PUBLISH_SUBMIT, slot, view_generation[slot], used[front_end]
	:: queue_pair[front_end]!WRITE_TAIL, slot, 0, used[front_end];
	   queue_pair[front_end]!WRITE_HEAD, slot, 0, used[front_end];
	   queue_pair[front_end]!PUBLISH_SUBMIT, slot, view_generation[slot], used[front_end]
#endif
	fi
}

inline end_request(slot)
{
	assert(!ended[BOOK(front_end, view_request[slot])]); /* CONSERVE: at most once */
	ended[BOOK(front_end, view_request[slot])] = true
}

inline post_release(slot)
{
	queue_pair[front_end]!PUBLISH_FREE, slot, view_generation[slot], 0;
	view[slot] = FREE;
	view_request[slot] = 0;
	view_tokens[slot] = 0
}

/* What a bulk read brought of one slot. A word of another generation is another life's. */
inline handle_copy(slot)
{
	if
	:: view[slot] == UNKNOWN ->
		view_generation[slot] = copy_generation[slot];
		if
		:: copy_state[slot] == EMPTY -> view[slot] = FREE
		:: copy_state[slot] == DECODE_COMPLETED -> post_release(slot)
		:: else ->
			view[slot] = ORPHAN;
			queue_pair[front_end]!PUBLISH_CANCEL, slot, view_generation[slot], 0;
			asked[BOOK(front_end, tenant[slot])] = true
		fi
	:: (view[slot] == ACTIVE || view[slot] == ORPHAN) &&
	   copy_generation[slot] == view_generation[slot] ->
		if
		:: view[slot] == ACTIVE && copy_tokens[slot] > view_tokens[slot] ->
			/* the tokens that the flag counts are there, and are this request's */
			assert(output_owner[slot] == view_request[slot]);     /* ORDER */
			assert(output_count[slot] >= copy_tokens[slot]);      /* ORDER */
			view_tokens[slot] = copy_tokens[slot]
		:: else
		fi;
		if
		:: copy_state[slot] == DECODE_COMPLETED ->
			if
			:: view[slot] == ACTIVE ->
				assert(tenant[slot] == view_request[slot]); /* CONSERVE: its own outcome */
				assert(copy_outcome[slot] != NONE);         /* CONSERVE */
				assert(view_tokens[slot] == copy_tokens[slot]); /* ORDER */
				end_request(slot)
			:: else
			fi;
			post_release(slot)
		:: else
		fi
	:: else ->
#ifdef BUG_DOUBLE_RELEASE
		if
		:: copy_state[slot] == DECODE_COMPLETED && ROOM(1) ->
			queue_pair[front_end]!PUBLISH_FREE, slot, copy_generation[slot], 0
		:: else
		fi
#else
		skip
#endif
	fi;
	copy_state[slot] = 0; copy_generation[slot] = 0; copy_tokens[slot] = 0; copy_outcome[slot] = 0
}

inline take_copy(slot)
{
	copy_state[slot] = flag_state[slot];
	copy_generation[slot] = flag_generation[slot];
	copy_tokens[slot] = flag_tokens[slot];
	copy_outcome[slot] = flag_outcome[slot]
}

/* Would a bulk read bring anything that can matter? Reads that bring nothing change nothing. */
#define NEWS(slot) \
	(view[slot] == UNKNOWN || flag_state[slot] == DECODE_COMPLETED || \
	(view[slot] == ACTIVE && flag_generation[slot] == view_generation[slot] && \
	    flag_tokens[slot] > view_tokens[slot]))

inline forget(slot)
{
	if /* its client's connection broke: that is how this request ended */
	:: view[slot] == ACTIVE -> end_request(slot)
	:: else
	fi;
	view[slot] = UNKNOWN; view_generation[slot] = 0; view_tokens[slot] = 0; view_request[slot] = 0;
	copy_state[slot] = 0; copy_generation[slot] = 0; copy_tokens[slot] = 0; copy_outcome[slot] = 0
}

#ifdef ENDLESS /* all but the first have clients for ever */
#define WANTS_MORE (front_end > 0 || used[front_end] < WANTED(front_end))
#else
#define WANTS_MORE (used[front_end] < WANTED(front_end))
#endif

#define OPTIONS_OF(slot) \
	:: atomic { view[slot] == FREE && WANTS_MORE && ROOM(3) -> \
		post_submit(slot) } \
	:: atomic { view[slot] == ACTIVE && cancels < CANCELS && ROOM(1) -> \
		cancels++; /* the client leaves */ \
		asked[BOOK(front_end, view_request[slot])] = true; \
		queue_pair[front_end]!PUBLISH_CANCEL, slot, view_generation[slot], 0 } \
	:: atomic { view[slot] == ACTIVE && view_generation[slot] > 1 && cancels < CANCELS && \
		ROOM(1) -> \
		cancels++; /* the client of the life before leaves, late */ \
		queue_pair[front_end]!PUBLISH_CANCEL, slot, view_generation[slot] - 1, 0 }

/* The slots of this front end, one after the other. */
#if SLOTS / FRONT_ENDS == 1
#define ANY_OF_MINE(p)    (p(MINE(0)))
#define EACH_OF_MINE(act) act(MINE(0))
#define ALL_OPTIONS       OPTIONS_OF(MINE(0))
#elif SLOTS / FRONT_ENDS == 2
#define ANY_OF_MINE(p)    (p(MINE(0)) || p(MINE(1)))
#define EACH_OF_MINE(act) act(MINE(0)); act(MINE(1))
#define ALL_OPTIONS       OPTIONS_OF(MINE(0)) OPTIONS_OF(MINE(1))
#else
#define ANY_OF_MINE(p)    (p(MINE(0)) || p(MINE(1)) || p(MINE(2)))
#define EACH_OF_MINE(act) act(MINE(0)); act(MINE(1)); act(MINE(2))
#define ALL_OPTIONS       OPTIONS_OF(MINE(0)) OPTIONS_OF(MINE(1)) OPTIONS_OF(MINE(2))
#endif
#define BUSY(slot) (view[slot] != FREE)

proctype FrontEnd(byte front_end)
{
	byte lost1, lost2, lost3, lost4;
	do
	ALL_OPTIONS
	:: atomic { !copied[front_end] && ANY_OF_MINE(NEWS) -> /* a bulk read takes its copy ... */
		copied[front_end] = true;
		EACH_OF_MINE(take_copy) }
	:: atomic { copied[front_end] && ROOM(EACH) ->         /* ... and it is looked at, later */
		copied[front_end] = false;
		EACH_OF_MINE(handle_copy) }
	:: atomic { front_end == 0 && crashes < CRASHES ->
		crashes++;
#ifndef BUG_NO_FENCE /* the dead connection delivers nothing after the restart's first read */
		do
		:: queue_pair[front_end]?lost1, lost2, lost3, lost4
		:: empty(queue_pair[front_end]) -> break
		od;
		lost1 = 0; lost2 = 0; lost3 = 0; lost4 = 0;
#endif
		copied[front_end] = false;
		EACH_OF_MINE(forget) }
	:: atomic { !copied[front_end] && !WANTS_MORE &&
		empty(queue_pair[front_end]) && !ANY_OF_MINE(BUSY) ->
		finished[front_end] = true;
		break }
	od
}
