/*
 * Is a recorded trace a behaviour of the model's slots?
 *
 * accept.py cuts traces into lives (see there) and writes each distinct one into trace.h, one row an
 * event. One process goes through the rows; a row is a step only if the rules of slot.pml, the same
 * that ring.pml stores its flag words by, lead from the word before to exactly the word recorded.
 * The first row of a life that is no such step is printed, and the rest of that life left out. The
 * search is complete when it prints "accepted to the end".
 */
#include "slot.pml"

c_decl {
\#include "trace.h"
};

int row;
bool refused;
bool begins;

/* the flag word as the model has it ... */
byte state;
byte outcome;
int generation;
int tokens;

/* ... and the row: who did what, and the word that was seen after it */
byte event;
byte writer;
byte next_state;
byte next_outcome;
int next_generation;
int next_tokens;

#define MAY_COUNT \
	(ADDS_TOKENS(event) -> next_tokens > tokens : \
	(event == SUBMIT || event == RELEASE -> next_tokens == 0 : next_tokens == tokens))
#define MAY_BE_LIFE \
	(event == SUBMIT -> next_generation == generation + 1 : next_generation == generation)

init {
	do
	:: d_step { row < ROWS ->
		c_code {
			now.begins = trace[now.row].begins;
			now.event = trace[now.row].event;
			now.writer = trace[now.row].writer;
			now.next_state = trace[now.row].state;
			now.next_outcome = trace[now.row].outcome;
			now.next_generation = trace[now.row].generation;
			now.next_tokens = trace[now.row].tokens;
		};
		if
		:: begins -> state = EMPTY; outcome = NONE; generation = 0; tokens = 0; refused = false
		:: else
		fi;
		if
		:: refused -> skip
		:: !refused && OWNER_OF(state) == writer && WRITER_OF(event) == writer &&
		   LEADS(state, event) == next_state && MAY_SAY(event, next_outcome) &&
		   MAY_COUNT && MAY_BE_LIFE ->
			state = next_state; outcome = next_outcome;
			generation = next_generation; tokens = next_tokens
		:: else ->
			refused = true;
			c_code { printf("refused row %d in state %d\n", now.row, now.state); }
		fi;
		row++ }
	:: row == ROWS -> break
	od;
	c_code { printf("accepted to the end\n"); }
}
