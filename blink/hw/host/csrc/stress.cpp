// The core under load: real threads, several front ends, every token and every outcome looked at.
//
//   stress --lifecycles 10000000 --front-ends 2 --processes
//
// Prints one line of JSON. Exits 1 if an invariant does not hold, and says which.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <string>

#include "stress_world.h"

using namespace blink;

namespace {

using Options = std::map<std::string, long long>;

const Options DEFAULTS = {
    {"lifecycles", 100'000},
    {"front-ends", 2},
    {"processes", 0},
    {"slots", 1024},
    {"scanners", 256},
    {"threads", 2},
    {"contested", 1},
    {"batch", 512},
    {"prefill-batch", 8},
    {"window", LAUNCH_WINDOW_MAX},
    {"blocks", 1024},
    {"block-tokens", 4},
    {"output-tokens", 4},
    {"prompt-tokens", 8},
    {"cancel-one-in", 16},
    {"seed", 1},
    {"plant", 0},
    {"log", 0},
};

// A small front end of this run's own. The real one is Python's; it runs in tests/hw/test_processes.py.
class FrontEnd {
 public:
  FrontEnd(const StressMemory& memory, const Geometry& geometry, const Options& options, u32 number)
      : memory_(memory),
        geometry_(geometry),
        number_(number),
        random_(mixed(options.at("seed") * 1000 + number)),
        cancel_one_in_(options.at("cancel-one-in")),
        todo_(options.at("lifecycles") / options.at("front-ends")),
        first_(number * share(options)),
        lives_(share(options)),
        words_(2 * share(options)),
        ids_(geometry.output_tokens_max) {}

  // Serves its share of the lifecycles, then leaves all its slots empty.
  void run() {
    u64 ended = 0;
    while (ended < todo_ && !memory_.control->stop.load(std::memory_order_acquire)) {
      const u64 before = ended;
      memory_.read_words(geometry_.flag(first_), words_.data(), static_cast<u32>(words_.size()));
      for (u32 own = 0; own < lives_.size(); ++own) {
        if (!lives_[own].open) {
          if (begun_ < todo_) submit(own);
        } else if (!look(own, words_[2 * own], &ended)) {
          return;
        }
      }
      memory_.control->ended.fetch_add(ended - before, std::memory_order_relaxed);
      if (ended == before) std::this_thread::yield();
    }
  }

 private:
  struct Life {
    bool open;
    bool asked;
    u32 looks_left;  // until its client leaves; 0: it stays
    u32 tokens;
    u32 output_tokens_max;
    u32 stop_after;  // 0: it has no stop token
    u64 request;
    u64 word;
  };

  static u32 share(const Options& options) { return options.at("slots") / options.at("front-ends"); }

  u32 below(u32 bound) { return static_cast<u32>(mixed(random_ += 0x9e3779b97f4a7c15ull) % bound); }

  void submit(u32 own) {
    Life& life = lives_[own];
    const u32 slot = first_ + own;
    const u64 word = step(life.word, event::SUBMIT, writer::FRONT_END).desired;
    life = {true, false, leaves(), 0, 1 + below(geometry_.output_tokens_max), 0, u64{number_} << 40 | begun_++, word};
    if (below(2)) life.stop_after = 1 + below(life.output_tokens_max);
    Descriptor wanted{};
    wanted.arrival_ns = begun_;
    wanted.prompt_tokens = 1 + below(geometry_.prompt_tokens_max);
    wanted.output_tokens_max = life.output_tokens_max;
    wanted.stop_token = life.stop_after ? token_of(life.request, life.stop_after - 1) : NO_TOKEN;
    wanted.generation = generation_of(word);
    std::vector<u32> prompt(wanted.prompt_tokens);
    for (u32 index = 0; index < prompt.size(); ++index) prompt[index] = prompt_token_of(life.request, index);
    const bool early = memory_.plant == Plant::FLAG_BEFORE_PAYLOAD;
    if (early) {
      memory_.store_release(geometry_.flag(slot), word);
      std::this_thread::yield();
    }
    memory_.write(geometry_.prompt(slot), prompt.data(), wanted.prompt_tokens * TOKEN_BYTES);
    memory_.write(geometry_.descriptor(slot), &wanted, sizeof wanted);
    memory_.store_relaxed(geometry_.request_id(slot), life.request);
    if (!early) memory_.store_release(geometry_.flag(slot), word);
  }

  // One slot's word, as the bulk read found it. False if something is wrong with it.
  bool look(u32 own, u64 word, u64* ended) {
    Life& life = lives_[own];
    const u32 slot = first_ + own;
    if (!is_flag_word(word) || generation_of(word) != generation_of(life.word) || tokens_of(word) < life.tokens)
      return memory_.control->violated("SLOT: slot %u holds %#llx after %#llx", slot, word, life.word);
    if (!take_tokens(life, slot, tokens_of(word))) return false;
    life.word = word;
    if (state_of(word) == state::DECODE_COMPLETED) {
      ++*ended;
      return release(life, slot);
    }
    if (life.looks_left != 0 && --life.looks_left == 0) leave(life, slot);
    return true;
  }

  bool take_tokens(Life& life, u32 slot, u32 tokens) {
    if (tokens > life.output_tokens_max)
      return memory_.control->violated("ORDER: slot %u: %u tokens, too many", slot, tokens);
    memory_.read(geometry_.output(slot, life.tokens), ids_.data(), (tokens - life.tokens) * TOKEN_BYTES);
    for (u32 index = life.tokens; index < tokens; ++index)
      if (ids_[index - life.tokens] != token_of(life.request, index))
        return memory_.control->violated("ORDER: slot %u: token %u of request %llx is %#x", slot, index, life.request,
                                         ids_[index - life.tokens]);
    memory_.control->tokens.fetch_add(tokens - life.tokens, std::memory_order_relaxed);
    life.tokens = tokens;
    return true;
  }

  bool release(Life& life, u32 slot) {
    const u32 ends = outcome_of(life.word);
    const bool stopped = life.stop_after != 0 && life.tokens == life.stop_after;
    const bool right = ends == outcome::STOP     ? stopped
                       : ends == outcome::LENGTH ? !stopped && life.tokens == life.output_tokens_max
                                                 : ends == outcome::CANCELLED && life.asked;
    if (!right)
      return memory_.control->violated("CONSERVE: slot %u: outcome %u after %u tokens", slot, ends, life.tokens);
    if (ends == outcome::CANCELLED) memory_.control->cancelled.fetch_add(1, std::memory_order_relaxed);
    life.word = step(life.word, event::RELEASE, writer::FRONT_END).desired;
    memory_.store_release(geometry_.flag(slot), life.word);
    life.open = false;
    return true;
  }

  u32 leaves() { return cancel_one_in_ && below(cancel_one_in_) == 0 ? 1 + below(64) : 0; }

  // A client leaves; every other time it is a late farewell to the slot's request before this one.
  void leave(Life& life, u32 slot) {
    const u32 generation = generation_of(life.word);
    const bool late = below(2);
    life.asked = !late;
    memory_.store_release(geometry_.cancel(slot),
                          u64{generation - late} << CANCEL_GENERATION_SHIFT | outcome::CANCELLED);
  }

  const StressMemory memory_;
  const Geometry geometry_;
  const u32 number_;
  u64 random_;
  const u32 cancel_one_in_;
  const u64 todo_;
  u64 begun_ = 0;
  const u32 first_;
  std::vector<Life> lives_;
  std::vector<u64> words_;
  std::vector<u32> ids_;
};

void* shared(u64 bytes) {
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) std::perror("mmap"), std::exit(2);
  return mapped;
}

Config config_of(const Options& options, const std::vector<u32>& batches, const std::vector<u32>& prompts) {
  const auto number = [&](const char* name) { return static_cast<u32>(options.at(name)); };
  return {number("slots"),
          number("prompt-tokens"),
          number("output-tokens"),
          number("blocks"),
          number("block-tokens"),
          number("batch"),
          number("prefill-batch"),
          4096,
          number("window"),
          number("prompt-tokens"),
          static_cast<u32>(batches.size()),
          static_cast<u32>(prompts.size()),
          batches.data(),
          prompts.data()};
}

// Runs the front ends to their end; false if one of them died.
bool serve(const StressMemory& memory, const Geometry& geometry, const Options& options,
           const std::vector<pid_t>& processes) {
  bool lived = true;
  for (const pid_t each : processes) {
    int status = 0;
    lived = waitpid(each, &status, 0) == each && status == 0 && lived;
  }
  std::vector<std::thread> threads;
  for (u32 number = 0; processes.empty() && number < options.at("front-ends"); ++number)
    threads.emplace_back([&, number] { FrontEnd(memory, geometry, options, number).run(); });
  for (std::thread& each : threads) each.join();
  return lived;
}

void check_left(Core<StressMemory>& core, Control& control) {
  if (control.violations) return;
  const BlockPool& blocks = core.state.blocks;
  if (blocks.blocks_free != blocks.blocks_total)
    control.violated("KV: %u blocks leaked", blocks.blocks_total - blocks.blocks_free);
  for (u32 slot = 0; slot < core.geometry.slots; ++slot)
    if (state_of(core.scheduler.ring.memory.load_acquire(core.geometry.flag(slot))) != state::EMPTY)
      control.violated("CONSERVE: slot %u is not empty", slot);
}

int report(const Core<StressMemory>& core, const Control& control, double seconds) {
  std::printf(
      "{\"lifecycles\": %llu, \"tokens\": %llu, \"cancelled\": %llu, \"claims_lost\": %llu, \"launches\": %llu, "
      "\"relaunches\": %llu, \"seconds\": %.3f, \"lifecycles_per_s\": %.0f, \"violations\": %u, \"violation\": "
      "\"%s\"}\n",
      control.ended.load(), control.tokens.load(), control.cancelled.load(), control.cas_lost.load(),
      core.state.window.launches_total, core.state.window.relaunches, seconds, control.ended.load() / seconds,
      control.violations.load(), control.message);
  return control.violations ? 1 : 0;
}

int run(const Options& options, const char* log_path) {
  const std::vector<u32> batches{static_cast<u32>(options.at("batch"))},
      prompts{static_cast<u32>(options.at("prompt-tokens"))};
  const Config config = config_of(options, batches, prompts);
  const Geometry geometry = geometry_of(config.slots, config.prompt_tokens_max, config.output_tokens_max);
  auto* base = static_cast<u8*>(shared(geometry.total_bytes));
  auto* control = new (shared(sizeof(Control))) Control;
  const u64 capacity = options.at("log");
  auto* log = capacity ? static_cast<Logged*>(shared(capacity * sizeof(Logged))) : nullptr;
  const Identity identity = identity_of(geometry);
  std::memcpy(base, &identity, sizeof identity);
  StressMemory memory{{base},
                      control,
                      log,
                      capacity,
                      geometry.descriptors_offset,
                      geometry.outputs_offset,
                      static_cast<Plant>(options.at("plant")),
                      writer::FRONT_END};

  std::vector<pid_t> processes;  // before any thread: a thread does not survive a fork
  for (u32 number = 0; options.at("processes") && number < options.at("front-ends"); ++number) {
    processes.push_back(fork());
    if (processes.back() == 0) {
      FrontEnd(memory, geometry, options, number).run();
      _exit(0);
    }
  }
  const auto started = std::chrono::steady_clock::now();
  StressMemory own = memory;
  own.writer = writer::SCHEDULER;
  Core<StressMemory> core(config, own);
  StressEngine engine(core, own, config.window);
  std::thread computing([&] { engine.run(); });
  ThreadedScheduler<StressMemory> scheduler(
      core, options.at("scanners"), options.at("threads"), options.at("contested"), [&](Status fault, u32 slot) {
        const char* broken = fault == Status::CLAIMED_TWICE ? "OWNER" : "SLOT";
        control->violated("%s: slot %u stops the scheduler: %s", broken, slot, name_of(fault));
      });
  if (!serve(memory, geometry, options, processes)) control->violated("CONSERVE: a front end died");
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  scheduler.stop();
  control->stop.store(1, std::memory_order_release);
  computing.join();
  check_left(core, *control);
  if (log) {
    std::FILE* file = std::fopen(log_path, "wb");
    if (!file) return std::perror(log_path), 2;
    std::fwrite(log, sizeof(Logged), std::min<u64>(control->logged, capacity), file);
    std::fclose(file);
  }
  return report(core, *control, seconds);
}

}  // namespace

int main(int count, char** arguments) {
  Options options = DEFAULTS;
  const char* log_path = "stress.log";
  for (int at = 1; at + 1 < count; at += 2) {
    const std::string name = std::string(arguments[at]).substr(2);
    if (name == "log-path") log_path = arguments[at + 1];
    else if (options.count(name)) options[name] = std::atoll(arguments[at + 1]);
    else return std::fprintf(stderr, "unknown option --%s\n", name.c_str()), 2;
  }
  return run(options, log_path);
}
