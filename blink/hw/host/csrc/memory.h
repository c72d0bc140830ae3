// Ring memory on a host: std::atomic over memory that threads and processes share, or calls into Python.
#pragma once

#include <atomic>
#include <cstring>

#include "ring.h"

namespace blink {

using Word = std::atomic<u64>;
static_assert(sizeof(Word) == WORD_BYTES && Word::is_always_lock_free, "a word in place, atomic between processes");

// The Memory of ring.h. Words are atomic; prompts, descriptors and tokens are plain bytes, so that ThreadSanitizer
// sees a race if a flag does not order them.
struct HostMemory {
  u8* base;

  u64 load_relaxed(u64 offset) const { return word(offset).load(std::memory_order_relaxed); }
  u64 load_acquire(u64 offset) const { return word(offset).load(std::memory_order_acquire); }
  void store_release(u64 offset, u64 value) const { word(offset).store(value, std::memory_order_release); }

  u64 cas(u64 offset, u64 expected, u64 desired) const {
    word(offset).compare_exchange_strong(expected, desired, std::memory_order_acq_rel, std::memory_order_acquire);
    return expected;
  }

  void read(u64 offset, void* to, u32 bytes) const { std::memcpy(to, base + offset, bytes); }
  void write(u64 offset, const void* from, u32 bytes) const { std::memcpy(base + offset, from, bytes); }

  // A front end reads the metadata in bulk while others write it: word by word, each an acquire, as a NIC would see it.
  void read_words(u64 offset, u64* to, u32 count) const {
    for (u32 at = 0; at < count; ++at) to[at] = load_acquire(offset + u64{at} * WORD_BYTES);
  }

  // Its part of the metadata, a request id, lies among others' words; the flag behind it publishes it.
  void store_relaxed(u64 offset, u64 value) const { word(offset).store(value, std::memory_order_relaxed); }

 private:
  Word& word(u64 offset) const { return *reinterpret_cast<Word*>(base + offset); }
};

// The same doors, each a function of Python's: for a DeviceMemory that is not bytes in this process.
struct CalledMemory {
  u64 (*load)(u64 offset, u32 acquire);
  void (*store)(u64 offset, u64 value);
  u64 (*swap)(u64 offset, u64 expected, u64 desired);
  void (*get)(u64 offset, void* to, u32 bytes);
  void (*put)(u64 offset, const void* from, u32 bytes);

  u64 load_relaxed(u64 offset) const { return load(offset, 0); }
  u64 load_acquire(u64 offset) const { return load(offset, 1); }
  void store_release(u64 offset, u64 value) const { store(offset, value); }
  u64 cas(u64 offset, u64 expected, u64 desired) const { return swap(offset, expected, desired); }
  void read(u64 offset, void* to, u32 bytes) const { get(offset, to, bytes); }
  void write(u64 offset, const void* from, u32 bytes) const { put(offset, from, bytes); }
};

}  // namespace blink
