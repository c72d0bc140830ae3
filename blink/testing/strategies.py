"""Hypothesis strategies for the ring: words, geometries, operations."""

from __future__ import annotations

from hypothesis import strategies as st

from blink.ring_protocol.constants import GENERATIONS, TOKENS_MAX
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.ports import Cas, Op, Publish, Read, Write
from blink.ring_protocol.slot import SlotWord, is_coherent, pack
from blink.ring_protocol.states import Event, Outcome, State, Writer

states = st.sampled_from(State)
events = st.sampled_from(Event)
writers = st.sampled_from(Writer)
outcomes = st.sampled_from(Outcome)

generations = st.integers(0, GENERATIONS - 1)
token_counts = st.integers(0, TOKENS_MAX)

slot_words = st.builds(SlotWord, states, outcomes, generations, token_counts)
"""Any four fields, whether or not a history leads to them."""

_LIVES = [
    (state, outcome, tokens)
    for state in State
    for outcome in Outcome
    for tokens in (0, 1, 2, TOKENS_MAX)
    if is_coherent(SlotWord(state, outcome, 0, tokens))
]
coherent_words = st.builds(
    lambda life, generation: SlotWord(life[0], life[1], generation, life[2]),
    st.sampled_from(_LIVES),
    generations,
)
"""Words that some sequence of events can leave behind."""

flag_words = slot_words.map(lambda word: pack(*word))

small_geometries = st.builds(Geometry, st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
geometries = st.builds(
    Geometry, st.integers(1, 4096), st.integers(1, 1 << 17), st.integers(1, 1 << 17)
)


def ops(total_bytes: int) -> st.SearchStrategy[Op]:
    """Untagged operations within `total_bytes` of memory."""
    offsets = st.integers(0, total_bytes - 1)
    words = st.integers(0, total_bytes // 8 - 1).map(lambda index: 8 * index)
    values = st.integers(0, (1 << 64) - 1)
    writes = offsets.flatmap(
        lambda at: st.binary(min_size=1, max_size=min(16, total_bytes - at)).map(
            lambda data: Write(at, data)
        )
    )
    reads = offsets.flatmap(
        lambda at: st.integers(1, total_bytes - at).map(lambda length: Read(at, length))
    )
    return st.one_of(
        writes,
        reads,
        st.builds(Publish, words, values),
        st.builds(Cas, words, values, values),
    )
