/*
 * The rules of one flag word: which event leads where, and whose it is.
 *
 * Written from docs/invariants.md (SLOT, OWNER), docs/state_machine.md and the life cycle in the
 * paper. The numbers are those of the vocabulary of traces, so that accept.py needs no translation.
 * ring.pml stores every flag word through `move`; the acceptor of traces applies the same rules.
 */

#define EMPTY              0
#define PREFILL_PENDING    1
#define PREFILL_PROCESSING 2
#define DECODE_PROCESSING  3
#define DECODE_PAUSED      4
#define DECODE_COMPLETED   5
#define NOWHERE            9

#define SUBMIT      0
#define CLAIM       1
#define FIRST_TOKEN 2
#define TOKENS      3
#define PAUSE       4
#define RESUME      5
#define COMPLETE    6
#define ABORT       7
#define RELEASE     8

#define FRONT_END 0
#define SCHEDULER 1

#define NONE      0
#define STOP      1
#define LENGTH    2
#define CANCELLED 3
#define TIMED_OUT 4
#define FAILED    5

/* Ownership: a state is left by one class of writer only, and the event is that class's. */
#define OWNER_OF(state)  ((state) == EMPTY || (state) == DECODE_COMPLETED -> FRONT_END : SCHEDULER)
#define WRITER_OF(event) ((event) == SUBMIT || (event) == RELEASE -> FRONT_END : SCHEDULER)

/* The life cycle: the state after `event` in `state`. */
#define LEADS(state, event) \
	((event) == SUBMIT      && (state) == EMPTY              -> PREFILL_PENDING    : \
	((event) == CLAIM       && (state) == PREFILL_PENDING    -> PREFILL_PROCESSING : \
	((event) == FIRST_TOKEN && (state) == PREFILL_PROCESSING -> DECODE_PROCESSING  : \
	((event) == TOKENS      && (state) == DECODE_PROCESSING  -> DECODE_PROCESSING  : \
	((event) == PAUSE       && (state) == DECODE_PROCESSING  -> DECODE_PAUSED      : \
	((event) == RESUME      && (state) == DECODE_PAUSED      -> DECODE_PROCESSING  : \
	((event) == COMPLETE    && (state) == DECODE_PROCESSING  -> DECODE_COMPLETED   : \
	((event) == ABORT       && ((state) == PREFILL_PROCESSING || (state) == DECODE_PROCESSING || \
	                            (state) == DECODE_PAUSED) -> DECODE_COMPLETED   : \
	((event) == RELEASE     && (state) == DECODE_COMPLETED   -> EMPTY : NOWHERE )))))))))

/* What an event may say: how many new tokens, which outcome. */
#define ADDS_TOKENS(event) ((event) == FIRST_TOKEN || (event) == TOKENS)
#define MAY_SAY(event, said) \
	((event) == COMPLETE -> ((said) == STOP || (said) == LENGTH) : \
	((event) == ABORT    -> ((said) == CANCELLED || (said) == TIMED_OUT || (said) == FAILED) : \
	                        (said) == NONE))
