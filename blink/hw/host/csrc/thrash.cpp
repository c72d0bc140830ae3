// A neighbour that takes what a busy host takes from a server: CPU time, cache, address translation, system calls.
//
//   thrash PARENT THREADS       says "ready" once all threads run; ends when the process PARENT does
//
// Each thread maps 32 MiB, writes to its pages in an order that no prefetcher follows, copies a part of it, asks the
// kernel something, gives everything back, and begins again.
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

constexpr size_t AREA_BYTES = 32u << 20;
constexpr size_t PAGE_BYTES = 4096;
constexpr size_t COPY_BYTES = 4u << 20;
constexpr int CALLS_A_ROUND = 2000;

void touch(char* area, uint64_t* random) {
  for (size_t page = 0; page < AREA_BYTES / PAGE_BYTES; ++page) {
    *random = *random * 6364136223846793005ull + 1442695040888963407ull;
    area[(*random >> 33) % AREA_BYTES] += 1;
  }
}

void thrash(uint64_t seed) {
  uint64_t random = seed;
  for (;;) {
    void* mapped = mmap(nullptr, AREA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) std::exit(1);
    char* area = static_cast<char*>(mapped);
    touch(area, &random);
    std::memcpy(area, area + AREA_BYTES / 2, COPY_BYTES);
    for (int call = 0; call < CALLS_A_ROUND; ++call) syscall(SYS_getppid);
    munmap(mapped, AREA_BYTES);
  }
}

}  // namespace

int main(int count, char** words) {
  if (count != 3) return 2;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != std::atoi(words[1])) return 1;  // it has ended already
  std::vector<std::thread> threads;
  for (int at = 0; at < std::atoi(words[2]); ++at) threads.emplace_back(thrash, at + 1);
  std::puts("ready");
  std::fflush(stdout);
  for (std::thread& each : threads) each.join();
}
