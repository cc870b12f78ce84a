// The other implementation of shim.h: every CUDA thread is a thread of the operating system, and ThreadSanitizer
// watches. It knows what acquire and release order, which the fibers don't.
//
// A program of this and of kernels, each launch with a copy of its own of the kernel and so of its static shared
// memory, reads a job (threads.py writes it), runs it some rounds from the same memory, and writes how often it ended
// in which. Blocks of one launch run one after the other if the kernel's module has shared memory, else side by side.
#include <dlfcn.h>
#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "shim.h"
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

extern "C" {
void AnnotateIgnoreSyncBegin(const char* file, int line);
void AnnotateIgnoreSyncEnd(const char* file, int line);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}

namespace kv_host {

struct KernelRecord {  // as in kernel_record.h, which wants a kernel's source before it
  const char* signature;
  void (*entry)(void** values);
  unsigned launch_bound;
  char* shared_begin;
  char* shared_end;
};

namespace {

// Threads that wait for each other; what they bring is put together by the last.
struct Meeting {
  std::mutex mutex;
  std::condition_variable changed;
  unsigned arrived = 0;
  unsigned round = 0;
  unsigned true_count = 0;
  unsigned answer_count = 0, answer_arrived = 0;
  uint64_t bits[32] = {}, answers[32] = {};
};

struct Group {  // a block
  unsigned threads;
  unsigned long dynamic_bytes;
  Meeting barrier;
  std::map<std::pair<unsigned, uint32_t>, std::unique_ptr<Meeting>> warps;  // by warp and mask
  std::mutex warps_mutex;
  std::unique_ptr<uint4[]> dynamic;
};

struct Self {
  uint3 thread, block;
  dim3 shape, grid;
  Group* group;
  uint32_t random;
};
thread_local Self self;

}  // namespace

uint3 thread_index() { return self.thread; }
uint3 block_index() { return self.block; }
dim3 block_shape() { return self.shape; }
dim3 grid_shape() { return self.grid; }
void* dynamic_shared() { return self.group->dynamic.get(); }

void trap(const char* file, int line) {
  fprintf(stderr, "%s:%d: __trap\n", file, line);
  abort();
}

void switch_point() {
  self.random = self.random * 1664525u + 1013904223u;
  if (self.random >> 29 == 0) sched_yield();
}

int barrier(const char*, int, Barrier kind, int predicate) {
  Meeting& meeting = self.group->barrier;
  std::unique_lock<std::mutex> lock(meeting.mutex);
  meeting.true_count += predicate != 0;
  const unsigned round = meeting.round;
  if (++meeting.arrived == self.group->threads) {
    meeting.answer_count = meeting.true_count;
    meeting.answer_arrived = meeting.arrived;
    meeting.arrived = meeting.true_count = 0;
    ++meeting.round;
    meeting.changed.notify_all();
  }
  while (meeting.round == round) meeting.changed.wait(lock);
  switch (kind) {
    case Barrier::kOr: return meeting.answer_count != 0;
    case Barrier::kAnd: return meeting.answer_count == meeting.answer_arrived;
    case Barrier::kCount: return (int)meeting.answer_count;
    case Barrier::kPlain: break;
  }
  return 0;
}

namespace {

// What lanes need to meet at all is hidden from ThreadSanitizer, as only __syncwarp orders memory.
class Hidden {
 public:
  explicit Hidden(bool is_hidden) : is_hidden_(is_hidden) {
    if (!is_hidden_) return;
    AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Hidden() {
    if (!is_hidden_) return;
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
  }

 private:
  bool is_hidden_;
};

Meeting& warp_meeting(unsigned warp, uint32_t mask) {
  std::lock_guard<std::mutex> lock(self.group->warps_mutex);
  std::unique_ptr<Meeting>& meeting = self.group->warps[{warp, mask}];
  if (meeting == nullptr) meeting.reset(new Meeting);
  return *meeting;
}

}  // namespace

// All lanes of the mask that were started must come: a lane that has returned is waited for, for ever.
uint64_t warp(const char*, int, WarpOp op, uint32_t mask, uint64_t bits, int argument) {
  const Hidden hidden(op != WarpOp::kSync);
  const unsigned lane = self.thread.x % 32, first = self.thread.x - lane;
  const unsigned started = self.group->threads - first;
  const uint32_t awaited = started >= 32 ? mask : mask & ((1u << started) - 1);
  Meeting& meeting = warp_meeting(first / 32, mask);
  std::unique_lock<std::mutex> lock(meeting.mutex);
  meeting.bits[lane] = bits;
  const unsigned round = meeting.round;
  if (++meeting.arrived == (unsigned)__builtin_popcount(awaited)) {
    for (int i = 0; i < 32; ++i) meeting.answers[i] = meeting.bits[i];
    meeting.arrived = 0;
    ++meeting.round;
    meeting.changed.notify_all();
  }
  while (meeting.round == round) meeting.changed.wait(lock);
  uint32_t votes = 0;
  int source = (int)lane;
  switch (op) {
    case WarpOp::kFrom: source = argument & 31; break;
    case WarpOp::kUp: source = (int)lane < argument ? (int)lane : (int)lane - argument; break;
    case WarpOp::kDown: source = (int)lane + argument > 31 ? (int)lane : (int)lane + argument; break;
    case WarpOp::kXor: source = ((int)lane ^ argument) & 31; break;
    case WarpOp::kBallot:
    case WarpOp::kSync:
      for (unsigned i = 0; i < 32; ++i)
        if (awaited >> i & 1) votes |= (uint32_t)(meeting.answers[i] & 1) << i;
      return votes;
  }
  return awaited >> source & 1 ? meeting.answers[source] : 0xDEADBEEFDEADBEEFULL;
}

namespace {

struct Value {
  bool is_pointer;
  uint64_t number;  // or of the buffer
  uint64_t offset;
};

struct JobLaunch {
  const KernelRecord* record;
  unsigned grid[3], threads;
  unsigned long dynamic_bytes;
  std::vector<Value> values;
};

struct Job {
  unsigned rounds;
  std::vector<std::vector<char>> buffers;
  std::vector<JobLaunch> launches;
};

template <class T>
T read(FILE* file) {
  T value;
  if (fread(&value, sizeof value, 1, file) != 1) abort();
  return value;
}

std::string read_bytes(FILE* file, size_t count) {
  std::string bytes(count, 0);
  if (count != 0 && fread(&bytes[0], 1, count, file) != count) abort();
  return bytes;
}

Job read_job(FILE* file) {
  Job job;
  job.rounds = (unsigned)read<uint64_t>(file);
  for (uint64_t left = read<uint64_t>(file); left != 0; --left) {
    const std::string bytes = read_bytes(file, read<uint64_t>(file));
    job.buffers.emplace_back(bytes.begin(), bytes.end());
  }
  for (uint64_t left = read<uint64_t>(file); left != 0; --left) {
    JobLaunch launch = {};
    const std::string name = "kv_host_record_" + read_bytes(file, read<uint64_t>(file));
    void* const tell = dlsym(RTLD_DEFAULT, name.c_str());
    if (tell == nullptr) abort();
    launch.record = ((const KernelRecord* (*)())tell)();
    for (unsigned& extent : launch.grid) extent = (unsigned)read<uint64_t>(file);
    launch.threads = (unsigned)read<uint64_t>(file);
    launch.dynamic_bytes = read<uint64_t>(file);
    for (uint64_t values = read<uint64_t>(file); values != 0; --values) {
      const bool is_pointer = read<uint64_t>(file) != 0;
      const uint64_t number = read<uint64_t>(file);
      launch.values.push_back({is_pointer, number, read<uint64_t>(file)});
    }
    job.launches.push_back(launch);
  }
  return job;
}

void run_block(const JobLaunch& launch, unsigned index, void** values, unsigned seed, std::atomic<bool>& started) {
  Group group{};
  group.threads = launch.threads;
  group.dynamic.reset(new uint4[launch.dynamic_bytes / sizeof(uint4) + 1]);
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < launch.threads; ++thread) {
    threads.emplace_back([&, thread] {
      const unsigned* grid = launch.grid;
      self.thread = {thread, 0, 0};
      self.block = {index % grid[0], index / grid[0] % grid[1], index / (grid[0] * grid[1])};
      self.shape = {launch.threads, 1, 1};
      self.grid = {grid[0], grid[1], grid[2]};
      self.group = &group;
      self.random = (seed * 7919u + index * 104729u + thread) * 2654435761u;
      while (!started.load(std::memory_order_relaxed)) sched_yield();
      // Else the thread that was made last would always come last.
      for (uint32_t wait = self.random >> 28; wait != 0; --wait) sched_yield();
      launch.record->entry(values);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void run_launch(const JobLaunch& launch, std::vector<std::vector<uint4>>& memory, unsigned seed,
                std::atomic<bool>& started) {
  std::vector<uint64_t> cells;
  for (const Value& value : launch.values)
    cells.push_back(value.is_pointer ? (uint64_t)memory[value.number].data() + value.offset : value.number);
  std::vector<void*> values;
  for (uint64_t& cell : cells) values.push_back(&cell);
  const unsigned blocks = launch.grid[0] * launch.grid[1] * launch.grid[2];
  const bool has_shared = launch.record->shared_begin != launch.record->shared_end;
  std::vector<std::thread> running;
  for (unsigned block = 0; block < blocks; ++block) {
    running.emplace_back([&, block] { run_block(launch, block, values.data(), seed, started); });
    if (has_shared) running.back().join();
  }
  for (std::thread& thread : running)
    if (thread.joinable()) thread.join();
}

std::string run_round(const Job& job, unsigned round) {
  std::vector<std::vector<uint4>> memory;
  for (const std::vector<char>& bytes : job.buffers) {
    memory.emplace_back(bytes.size() / sizeof(uint4) + 1);
    memcpy(memory.back().data(), bytes.data(), bytes.size());
  }
  std::atomic<bool> started{false};
  std::vector<std::thread> launches;
  for (size_t i = 0; i < job.launches.size(); ++i)
    launches.emplace_back([&, i] { run_launch(job.launches[i], memory, round * 31 + (unsigned)i, started); });
  started.store(true, std::memory_order_relaxed);
  for (std::thread& launch : launches) launch.join();
  std::string after;
  for (size_t i = 0; i < memory.size(); ++i) after.append((const char*)memory[i].data(), job.buffers[i].size());
  return after;
}

}  // namespace
}  // namespace kv_host

int main(int count, char** words) {
  if (count != 3) return 2;
  FILE* const in = fopen(words[1], "rb");
  if (in == nullptr) return 2;
  const kv_host::Job job = kv_host::read_job(in);
  fclose(in);
  std::map<std::string, uint64_t> ends;
  for (unsigned round = 0; round < job.rounds; ++round) ++ends[kv_host::run_round(job, round)];
  FILE* const out = fopen(words[2], "wb");
  if (out == nullptr) return 2;
  for (const auto& [bytes, times] : ends) {
    fwrite(&times, sizeof times, 1, out);
    fwrite(bytes.data(), 1, bytes.size(), out);
  }
  return fclose(out) == 0 ? 0 : 2;
}
