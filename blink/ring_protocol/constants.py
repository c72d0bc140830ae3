"""The numbers of the ring: what each one is, where it comes from, and how they relate.

Sources are the paper ("Blink: CPU-Free LLM Inference by Delegating the Serving Stack to GPU and
SmartNIC", arXiv 2604.07609v1), NVIDIA's CUDA Programming Guide, our own measurements (one H200,
2026-11-30), and decisions of this project. A number without a source does not belong here.
"""

from __future__ import annotations

from typing import Final

# --- Shape of the ring -----------------------------------------------------------------------

SLOTS_MAX: Final = 4096
"""Slots of a full ring. Paper sec 4.2."""

METADATA_BYTES: Final = 65_536
"""One bulk read of the token reader covers all slots. Paper sec 4.4: a 64 KB read a cycle."""

SLOT_METADATA_BYTES: Final = 16
"""The flag word and the request id. Derived: 64 KiB over 4096 slots."""

DESCRIPTOR_BYTES: Final = 64
"""One request descriptor: a cache line, so that the scheduler fetches it whole. Decision."""

TOKEN_BYTES: Final = 4
"""A token id. Vocabularies of 128,256 (Llama 3) and 151,936 (Qwen 3) do not fit in two bytes."""

WORD_BYTES: Final = 8
"""The largest store that a NIC, PCIe and a GPU all keep whole. Publishing is one such store."""

HEADER_BYTES: Final = 4096
"""The header fills a page, so that everything behind it starts on one."""

REGION_ALIGNMENT_BYTES: Final = 4096
"""Regions start on pages: memory is registered with a NIC (dma-buf) by the page."""

# --- The flag word ---------------------------------------------------------------------------

STATE_BITS: Final = 8
OUTCOME_BITS: Final = 8
GENERATION_BITS: Final = 24
TOKENS_BITS: Final = 24
"""Widths of the four fields of a flag word, lowest first. Decision: 64 bits in one store.

The token count is the highest field, so that publishing tokens is one addition. A generation is
mistaken only by a reader that slept through 16,777,216 uses of one slot."""

GENERATIONS: Final = 1 << GENERATION_BITS
TOKENS_MAX: Final = (1 << TOKENS_BITS) - 1

# --- The persistent scheduler ----------------------------------------------------------------

SCHEDULER_THREADS: Final = 256
"""One block scans the ring. Paper sec 4.2."""

LAUNCH_WINDOW_MAX: Final = 120
"""Fire-and-forget launches in one execution of the launching graph.

Paper sec 4.2 calls it a limit on *outstanding* launches. NVIDIA's guide says, and our H200 showed,
a limit on the *total*: the 121st launch returned cudaErrorInvalidValue, although all of the first
120 had long completed. The ring counts the total."""

GRAPH_EXECS: Final = 2
"""Executable copies of each graph, used in turn. An exec that has just finished refuses a launch
until it has retired; with two, an H200 refused none in 24,000 steps."""

TAIL_LAUNCHES_PENDING_MAX: Final = 255
"""Tail launches that may be pending at once. CUDA Programming Guide."""

# --- Identity of the layout ------------------------------------------------------------------

MAGIC: Final = int.from_bytes(b"BLNKRING", "little")
LAYOUT_VERSION: Final = 1

NO_TOKEN: Final = 0xFFFF_FFFF
"""Stands for "no stop token" in a descriptor: no vocabulary has this id."""

# --- Relations -------------------------------------------------------------------------------

assert SLOTS_MAX * SLOT_METADATA_BYTES == METADATA_BYTES, "one bulk read covers every slot"
assert SLOTS_MAX % SCHEDULER_THREADS == 0, "each scheduler thread scans the same number of slots"
assert SLOT_METADATA_BYTES == 2 * WORD_BYTES, "a flag word and a request id"
assert STATE_BITS + OUTCOME_BITS + GENERATION_BITS + TOKENS_BITS == 8 * WORD_BYTES
assert METADATA_BYTES % REGION_ALIGNMENT_BYTES == 0 == HEADER_BYTES % REGION_ALIGNMENT_BYTES
assert DESCRIPTOR_BYTES % WORD_BYTES == 0, "the cancel word of every descriptor is aligned"
assert LAUNCH_WINDOW_MAX >= 2, "a window holds at least a prefill and the decode it resumes"
