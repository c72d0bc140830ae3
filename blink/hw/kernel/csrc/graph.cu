// The parts of a captured graph that are ours: gather, scatter, and an engine that only takes its time.
#include "device.h"

using namespace blink;

// Arrays of one graph: `Inputs` of blink/hw/engine/port.py.
struct GraphInputs {
  int* tokens;        // B x T
  int* lengths;       // B
  int* positions;     // B
  int* block_tables;  // B x M
  float* temperature;
  int* top_k;
  float* top_p;
  long long* seed;
  int* output;
  u32 batch, tokens_max, blocks_max;
};

namespace {

__device__ u32 load_word(const u8* base, u64 offset) { return __ldcg(reinterpret_cast<const u32*>(base + offset)); }

// New tokens of a row: of a prefill all that it has, of a decode step the last one.
__device__ void gather_tokens(const View& view, const GraphInputs& to, u32 row, const Request& each, u32 length) {
  const bool prefill = view.launch->graph == graph::PREFILL_GRAPH;
  const u32 first = prefill ? 0 : each.prompt_tokens + each.tokens - 1;
  for (u32 at = threadIdx.x; at < length; at += blockDim.x) {
    const u32 index = first + at;
    const u64 offset = index < each.prompt_tokens ? view.geometry.prompt(each.slot) + u64{index} * TOKEN_BYTES
                                                  : view.geometry.output(each.slot, index - each.prompt_tokens);
    to.tokens[u64{row} * to.tokens_max + at] = static_cast<int>(load_word(view.ring, offset));
  }
  if (threadIdx.x == 0) to.positions[row] = static_cast<int>(first);
}

// Beyond its blocks a row's table names the scratch block: no stale column is ever read.
__device__ void gather_table(const View& view, const GraphInputs& to, u32 row, u32 slot, u32 count) {
  const u32* table = view.tables + u64{slot} * view.table_blocks_max;
  for (u32 at = threadIdx.x; at < to.blocks_max; at += blockDim.x)
    to.block_tables[u64{row} * to.blocks_max + at] = static_cast<int>(at < count ? table[at] : view.scratch_block);
}

__device__ void gather_sampling(const View& view, const GraphInputs& to, u32 row, u32 slot) {
  const u64 descriptor = view.geometry.descriptor(slot);
  to.temperature[row] = __uint_as_float(load_word(view.ring, descriptor + DESCRIPTOR_TEMPERATURE_OFFSET));
  to.top_p[row] = __uint_as_float(load_word(view.ring, descriptor + DESCRIPTOR_TOP_P_OFFSET));
  to.top_k[row] = static_cast<int>(load_word(view.ring, descriptor + DESCRIPTOR_TOP_K_OFFSET));
  const u64 low = load_word(view.ring, descriptor + DESCRIPTOR_SEED_OFFSET);
  const u64 high = load_word(view.ring, descriptor + DESCRIPTOR_SEED_OFFSET + 4);
  to.seed[row] = static_cast<long long>(high << 32 | low);
}

}  // namespace

// One block a row.
extern "C" __global__ void blink_gather(View view, GraphInputs to) {
  const u32 row = blockIdx.x;
  if (row == 0 && threadIdx.x == 0) view.launch->start_ns[view.launch->launched % 2] = now_ns();
  if (row >= view.launch->count) {
    gather_table(view, to, row, 0, 0);
    if (threadIdx.x == 0) {
      to.lengths[row] = to.positions[row] = 0;
      to.tokens[u64{row} * to.tokens_max] = 0;
      to.temperature[row] = 0.0f;
      to.top_p[row] = 1.0f;
      to.top_k[row] = 0;
      to.seed[row] = 0;
    }
    return;
  }
  const u32 slot = view.launch->slots[row];
  const Request each = view.requests[slot];
  const u32 length = view.launch->graph == graph::PREFILL_GRAPH ? each.context_tokens() : 1;
  gather_tokens(view, to, row, each, length);
  gather_table(view, to, row, slot, view.counts[slot]);
  if (threadIdx.x == 0) {
    to.lengths[row] = static_cast<int>(length);
    gather_sampling(view, to, row, slot);
  }
}

// One block. The completion word is the last thing that a graph writes, and a release: to the GPU's own scheduler; one
// on the host waits for the stream.
extern "C" __global__ void blink_scatter(View view, GraphInputs from) {
  for (u32 row = threadIdx.x; row < view.launch->count; row += blockDim.x)
    view.tokens[view.launch->slots[row]] = static_cast<u32>(from.output[row]);
  __syncthreads();
  if (threadIdx.x == 0) {
    view.launch->end_ns[view.launch->launched % 2] = now_ns();
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(&view.launch->finished), "l"(view.launch->launched)
                 : "memory");
  }
}

// Takes `fixed_ns`, `context_ps` picoseconds for each token of context, and `pair_fs` femtoseconds for each pair of
// tokens of the longest prompt, for each prompt; a token follows from seed and position.
extern "C" __global__ void blink_null_engine(GraphInputs in, u64 fixed_ns, u64 context_ps, u64 pair_fs) {
  const u64 started_ns = now_ns();
  u64 context = 0, longest = 0, prompts = 0;
  for (u32 row = 0; row < in.batch; ++row) {
    const u32 length = static_cast<u32>(in.lengths[row]);
    context += static_cast<u32>(in.positions[row]);
    longest = max(longest, u64{length});
    prompts += length > 0;
  }
  for (u32 row = threadIdx.x; row < in.batch; row += blockDim.x) {
    u64 mixed = static_cast<u64>(in.seed[row]) * 4096 + static_cast<u32>(in.positions[row] + in.lengths[row]);
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ull;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebull;
    in.output[row] = static_cast<int>(mixed >> 33 | 1);
  }
  const u64 pairs = prompts * longest * (longest + 1) / 2;
  const u64 wanted_ns = fixed_ns + context * context_ps / 1000 + pairs * pair_fs / 1000000;
  while (now_ns() - started_ns < wanted_ns) __nanosleep(200);
}
