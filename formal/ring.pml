/*
 * Blink's ring: front ends behind queue pairs, slots in GPU memory, a scheduler that never returns.
 *
 * Derived from docs/invariants.md, docs/state_machine.md and the paper, not from the code.
 * docs/formal.md says what is modelled, what is not, and why each step is as large as it is.
 * Sizes are macros (-DSLOTS=3); a planted bug is a macro too (-DBUG_FLAG_FIRST).
 */
#include "slot.pml"

#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef FRONT_ENDS
#define FRONT_ENDS 2
#endif
#ifndef REQUESTS
#define REQUESTS 2 /* of each front end */
#endif
#ifndef REQUESTS_OF_OTHERS
#define REQUESTS_OF_OTHERS REQUESTS /* of each front end but the first */
#endif
#ifndef WINDOW
#define WINDOW 3 /* launches of one execution of the scheduler; 120 on the device */
#endif
#ifndef TOKENS_MAX
#define TOKENS_MAX 2 /* a request's limit */
#endif
#ifndef BATCH
#define BATCH SLOTS /* requests that decode together */
#endif
#ifndef CANCELS
#define CANCELS 1 /* of all front ends together, in time or late */
#endif
#ifndef CRASHES
#define CRASHES 1 /* of the first front end */
#endif
#ifndef FAILURES
#define FAILURES 1 /* may the engine fail in a prefill? */
#endif
#ifndef DEPTH
#define DEPTH 4 /* operations that a queue pair holds */
#endif
#ifndef GENERATIONS
#define GENERATIONS 2 /* before they repeat, under -DENDLESS; otherwise they never do */
#endif
#ifndef WATCHED
#define WATCHED 0 /* the slot and the request that the liveness properties speak of */
#endif

#define EACH (SLOTS / FRONT_ENDS) /* slots of one front end: one writer a slot */
#define MINE(k) (front_end * EACH + (k))
#define WANTED(f) ((f) == 0 -> REQUESTS : REQUESTS_OF_OTHERS)
#define NOBODY 255

/* --- GPU memory, reached by both sides --------------------------------------------------- */

byte flag_state[SLOTS];      /* these four are one 8-byte word: always stored together */
byte flag_generation[SLOTS];
byte flag_tokens[SLOTS];
byte flag_outcome[SLOTS];
byte prompt_head[SLOTS];     /* the payload, in two pieces: the request that wrote each */
byte prompt_tail[SLOTS];
byte cancel_word[SLOTS];     /* the generation that shall be cancelled; 0 at first */
byte output_owner[SLOTS];    /* the request whose tokens lie in the output region */
byte output_count[SLOTS];    /* and how many */

/* --- GPU memory of the scheduler: it outlives an execution --------------------------------- */

#define STEP_DONE    0
#define STEP_RUNNING 1
byte step;                   /* the graph that was launched last */
bool in_step[SLOTS];
byte result[SLOTS];          /* what the step says of a slot: */
#define GOES_ON  0
#define STOPPED  1
#define BROKEN   2
#define SAID_STOP   3        /* its last token is published, its end is not yet */
#define SAID_LENGTH 4

/* --- shared memory of one execution: lost at a relaunch ------------------------------------- */

byte launches;
bool known[SLOTS];           /* slots in this scheduler's hands */
byte admitting = NOBODY;     /* the slot whose prefill is about to be launched */
bool decoded;                /* the last step was a decode step: a scan overlapped it */
bool adopting;               /* a fresh instance has not looked yet at what it inherits */
byte looked[2] = NOBODY;     /* what a scanning thread has seen and not yet claimed */
byte looked_generation[2];

/* --- the front ends ------------------------------------------------------------------------ */

#define UNKNOWN 0            /* after a start: nobody has looked at the slot */
#define FREE    1
#define ACTIVE  2
#define ORPHAN  3            /* somebody else's life, to be cancelled and released */
byte view[SLOTS];
byte view_generation[SLOTS];
byte view_tokens[SLOTS];
byte view_request[SLOTS];
bool copied[FRONT_ENDS];     /* a bulk read is under way, and this is what it took along */
byte copy_state[SLOTS];
byte copy_generation[SLOTS];
byte copy_tokens[SLOTS];
byte copy_outcome[SLOTS];
byte used[FRONT_ENDS];       /* requests submitted so far: their numbers are 1, 2, ... */
byte cancels;
byte crashes;
bool finished[FRONT_ENDS];

#define WRITE_HEAD     0
#define WRITE_TAIL     1
#define PUBLISH_SUBMIT 2
#define PUBLISH_FREE   3
#define PUBLISH_CANCEL 4
chan queue_pair[FRONT_ENDS] = [DEPTH] of { byte, byte, byte, byte }; /* op, slot, generation, request */

/* --- the book: what is true, for the assertions only ---------------------------------------- */

byte life[SLOTS];            /* lives of the slot so far */
byte looked_life[2];
byte tenant[SLOTS];          /* the request whose SUBMIT has landed */
byte launched_for[SLOTS];    /* the request for which a step was launched */
bool claimed[SLOTS];
#define BOOK(f, request) ((f) * REQUESTS + (request) - 1)
bool asked[FRONT_ENDS * REQUESTS];
bool ended[FRONT_ENDS * REQUESTS];

/* Store a flag word. SLOT: the table allows it. OWNER: the writer owned the word. */
inline move(slot, writer, event, said)
{
	assert(OWNER_OF(flag_state[slot]) == writer && WRITER_OF(event) == writer); /* OWNER */
	assert(LEADS(flag_state[slot], event) != NOWHERE);                          /* SLOT */
	assert(MAY_SAY(event, said));                                               /* CONSERVE */
	flag_state[slot] = LEADS(flag_state[slot], event);
	flag_outcome[slot] = said
}

/* --- the queue pair: in order, at any later time -------------------------------------------- */

proctype QueuePair(byte front_end)
{
	byte op, slot, generation, request;
end:
	do
	:: atomic {
		queue_pair[front_end]?op, slot, generation, request ->
		if
		:: op == WRITE_HEAD -> prompt_head[slot] = request
		:: op == WRITE_TAIL -> prompt_tail[slot] = request
		:: op == PUBLISH_CANCEL -> cancel_word[slot] = generation
		:: op == PUBLISH_SUBMIT ->
			move(slot, FRONT_END, SUBMIT, NONE);
#ifdef BUG_NO_GENERATION
			cancel_word[slot] = 0; /* without generations, somebody must clear it */
#endif
			flag_generation[slot] = generation;
			flag_tokens[slot] = 0;
#ifdef ENDLESS
			life[slot] = generation;
#else
			life[slot]++;
#endif
			tenant[slot] = request;
			claimed[slot] = false
		:: op == PUBLISH_FREE ->
			move(slot, FRONT_END, RELEASE, NONE);
			flag_tokens[slot] = 0;
			asked[BOOK(front_end, tenant[slot])] = false;
			tenant[slot] = 0;
			/* what the life leaves behind is spoilt: whoever reads it later fails */
			prompt_head[slot] = 0; prompt_tail[slot] = 0;
			output_owner[slot] = 0; output_count[slot] = 0
		fi;
		op = 0; slot = 0; generation = 0; request = 0
	}
	od
}

#include "front_end.pml"
#include "scheduler.pml"

/* --- the whole, and what is true in the end --------------------------------------------------- */

init
{
	byte index;
	atomic {
		index = 0;
		do
		:: index < FRONT_ENDS -> run QueuePair(index); run FrontEnd(index); index++
		:: else -> break
		od;
		run Scanner(0);
		run Scanner(1);
		index = 0
	}
	finished[0];
#if FRONT_ENDS > 1
	finished[1];
#endif
	atomic { /* CONSERVE and SLOT: everything has ended once, every slot is empty */
		do
		:: index < SLOTS -> assert(flag_state[index] == EMPTY && !known[index]); /* SLOT */ index++
		:: else -> break
		od;
		index = 0;
		do
		:: index < REQUESTS -> assert(ended[index]); /* CONSERVE */ index++
		:: else -> break
		od
	}
}

/* --- liveness, under weak fairness --------------------------------------------------------------- */

#define WATCHED_FRONT_END (WATCHED / EACH)

#ifdef LIVENESS_REQUEST /* every submitted request ends */
#ifndef REQUEST
#define REQUEST 1
#endif
ltl request_ends {
	[] ((used[WATCHED_FRONT_END] >= REQUEST) -> <> ended[BOOK(WATCHED_FRONT_END, REQUEST)])
}
#endif
#ifdef LIVENESS_PAUSED  /* every paused slot moves on */
ltl paused_moves_on {
	[] ((flag_state[WATCHED] == DECODE_PAUSED) -> <> (flag_state[WATCHED] != DECODE_PAUSED))
}
#endif
#ifdef LIVENESS_SLOT    /* every life ends, whoever crashed */
ltl slot_empties {
	[] ((flag_state[WATCHED] != EMPTY) -> <> (flag_state[WATCHED] == EMPTY))
}
#endif
