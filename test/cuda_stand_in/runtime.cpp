// SPDX-License-Identifier: Apache-2.0
// The stand-in's CUDA runtime.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <random>
#include <set>
#include <utility>

#include "device.hpp"

using namespace cuda_stand_in;

struct CUgraph_st {
  std::vector<Node> nodes;
  std::shared_ptr<GraphMemory> memory;
};
struct CUgraphExec_st {
  std::mutex mutex;
  std::shared_ptr<std::vector<Node> const> nodes;
  std::shared_ptr<GraphMemory> memory;
};
struct CUmemPoolHandle_st {
  std::atomic<std::uint64_t> release_threshold{0};
  int device = 0;
};

namespace {

thread_local cudaError_t last_error = cudaSuccess;
thread_local int device = 0;
thread_local cudaStreamCaptureMode interaction = cudaStreamCaptureModeGlobal;
thread_local Capture* own_capture = nullptr;  // begun by this thread, and not relaxed

struct Memory {
  std::mutex mutex;
  std::map<void*, std::size_t> sizes;
  std::map<void*, int> devices;                        // of device memory
  std::map<void*, std::weak_ptr<GraphMemory>> graphs;  // of memory that a graph owns
};
Memory& memory() {
  static Memory& all = *new Memory;  // for ever: memory may be left behind on purpose
  return all;
}

/// Handles of events are never reused while a session lasts, so that a late use is noticed.
struct Graveyard {
  std::mutex mutex;
  std::vector<std::unique_ptr<CUevent_st>> events;
};
Graveyard& graveyard() {
  static Graveyard all;
  return all;
}

cudaError_t answer(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

/// A call that may not be made while a capture is going on that could see it.
bool forbidden_in_capture() {
  if (own_capture != nullptr && interaction != cudaStreamCaptureModeRelaxed) {
    own_capture->broken = true;
    return true;
  }
  return state().global_captures.load() > 0 && interaction == cudaStreamCaptureModeGlobal;
}

cudaError_t allocate(void** pointer, std::size_t bytes, int of_device = -1) {
  auto& all = state();
  auto const now = static_cast<std::uint64_t>(
      all.bytes.fetch_add(static_cast<std::int64_t>(bytes)) + static_cast<std::int64_t>(bytes));
  if (now > all.memory_bytes.load() + static_cast<std::uint64_t>(all.left_bytes.load())) {
    all.bytes.fetch_sub(static_cast<std::int64_t>(bytes));
    return answer(cudaErrorMemoryAllocation);
  }
  void* const block = ::operator new(bytes == 0 ? 1 : bytes, std::align_val_t{256});
  std::memset(block, 0xCD, bytes);
  {
    std::lock_guard const lock(memory().mutex);
    memory().sizes[block] = bytes;
    if (of_device >= 0) memory().devices[block] = of_device;
  }
  ++all.allocations;
  *pointer = block;
  return cudaSuccess;
}

cudaError_t release(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  std::size_t bytes = 0;
  {
    std::lock_guard const lock(memory().mutex);
    auto const found = memory().sizes.find(pointer);
    if (found == memory().sizes.end()) return answer(cudaErrorInvalidValue);
    bytes = found->second;
    memory().sizes.erase(found);
    memory().devices.erase(pointer);
    memory().graphs.erase(pointer);
  }
  std::memset(pointer, 0xDD, bytes);
  ::operator delete(pointer, std::align_val_t{256});
  --state().allocations;
  state().bytes -= static_cast<std::int64_t>(bytes);
  return cudaSuccess;
}

std::size_t size_of(void* pointer) {
  std::lock_guard const lock(memory().mutex);
  return memory().sizes.at(pointer);
}
bool known(void* pointer) {
  std::lock_guard const lock(memory().mutex);
  return memory().sizes.count(pointer) != 0;
}
/// The graph that owns a block; null: none.
std::shared_ptr<GraphMemory> graph_of(void* pointer) {
  std::lock_guard const lock(memory().mutex);
  auto const found = memory().graphs.find(pointer);
  return found == memory().graphs.end() ? nullptr : found->second.lock();
}

void join(std::vector<std::size_t>& frontier, std::vector<std::size_t> const& more) {
  frontier.insert(frontier.end(), more.begin(), more.end());
  std::sort(frontier.begin(), frontier.end());
  frontier.erase(std::unique(frontier.begin(), frontier.end()), frontier.end());
}

/// Nodes that wait for other ranks, each on a thread: whatever else is ready runs meanwhile.
class Away {
 public:
  Away() = default;
  Away(Away const&) = delete;
  Away& operator=(Away const&) = delete;
  ~Away() {
    for (auto& thread : threads_) thread.join();
  }
  void begin(std::size_t number, Work const& work) {
    ++open_;
    threads_.emplace_back([this, number, &work] {
      work();
      std::lock_guard const lock(mutex_);
      ended_.push_back(number);
      moved_.notify_one();
    });
  }
  /// Waits for one of them. @return its number; none is left: false
  bool end(std::size_t& number) {
    if (open_ == 0) return false;
    std::unique_lock lock(mutex_);
    moved_.wait(lock, [this] { return !ended_.empty(); });
    number = ended_.back();
    ended_.pop_back();
    --open_;
    return true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable moved_;
  std::vector<std::size_t> ended_;
  std::vector<std::thread> threads_;
  std::size_t open_ = 0;
};

/// Runs a graph's nodes in some order that its edges allow. A device has room for one node of
/// NCCL's at a time: whichever of those that are ready, so that only edges order messages.
void run_graph(std::vector<Node> const& nodes, unsigned seed) {
  std::minstd_rand random(seed + 1);
  std::vector<std::size_t> missing(nodes.size());
  std::vector<std::vector<std::size_t>> then(nodes.size());
  std::vector<std::size_t> ready;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    missing[n] = nodes[n].after.size();
    for (std::size_t const before : nodes[n].after) then[before].push_back(n);
    if (missing[n] == 0) ready.push_back(n);
  }
  Away away;
  std::map<int, std::vector<std::size_t>> held;  // [devices]
  std::set<int> full;
  auto const pick = [&random](std::vector<std::size_t>& from) {
    std::swap(from[random() % from.size()], from.back());
    std::size_t const number = from.back();
    from.pop_back();
    return number;
  };
  for (std::size_t n = 0;;) {
    if (ready.empty()) {
      if (!away.end(n)) return;
      auto& waiting = held[nodes[n].device];
      full.erase(nodes[n].device);
      if (!waiting.empty()) ready.push_back(pick(waiting));
    } else {
      n = pick(ready);
      bool const lost = state().lost.load() != 0;
      if (!lost && nodes[n].kind == Kind::nccl) {
        if (full.insert(nodes[n].device).second)
          away.begin(n, nodes[n].work);
        else
          held[nodes[n].device].push_back(n);
        continue;
      }
      if (!lost) nodes[n].work();
    }
    for (std::size_t const next : then[n])
      if (--missing[next] == 0) ready.push_back(next);
  }
}

}  // namespace

namespace cuda_stand_in {

GraphMemory::~GraphMemory() {
  for (auto const& block : blocks) release(block.data);
}
GraphMemory::Block* GraphMemory::find(void const* data) {
  for (auto& block : blocks)
    if (block.data == data) return &block;
  return nullptr;
}

thread_local bool thread_of_nccl = false;

namespace {

std::atomic<bool> exiting{false};
/// Stands for the end of CUDA and NCCL in the end of the process.
struct End {
  ~End() {
    exiting = true;
    if (state().aborting != 0) refuse_at_exit("ncclCommAbort has not returned");
  }
};

/// A captured stream is given something by a thread that is none of NCCL's.
std::unique_lock<std::mutex> use_capture(Capture& capture) {
  if (!thread_of_nccl && capture.in_use)
    misuse("a captured graph is edited while a thread of NCCL's is at it");
  return std::unique_lock(capture.mutex);
}

}  // namespace

State& state() {
  static State& all = *new State;  // for ever: threads may outlive main
  static End const end;
  return all;
}

void misuse(char const* words) {
  std::lock_guard const lock(state().misuse_mutex);
  state().misuses.emplace_back(words);
}
std::vector<std::string> take_misuses() {
  std::lock_guard const lock(state().misuse_mutex);
  return std::exchange(state().misuses, {});
}
void refuse_at_exit(char const* call) {
  if (!exiting) return;
  std::fprintf(stderr, "%s while the process ends\n", call);
  std::_Exit(exit_code_of_misuse);
}

int count(Call call) {
  auto& all = state();
  refuse_at_exit("a call of CUDA or NCCL");
  ++all.calls[static_cast<std::size_t>(call)];
  if (all.fail_call.load() == static_cast<int>(call) && --all.fail_in == 0) {
    all.fail_call = -1;
    return all.fail_code;
  }
  return 0;
}

bool alive(cudaStream_t stream) { return stream != nullptr && stream->alive.load(); }
int current_device() { return device; }

cudaError_t enqueue(cudaStream_t stream, Kind kind, Work work) {
  if (!alive(stream)) return answer(cudaErrorInvalidResourceHandle);
  if (!stream->capture) {
    stream->push(std::move(work));
    return cudaSuccess;
  }
  auto const lock = use_capture(*stream->capture);
  auto& nodes = stream->capture->nodes;
  nodes.push_back({kind, std::move(work), stream->frontier, stream->device});
  stream->frontier.assign(1, nodes.size() - 1);
  return cudaSuccess;
}

std::uint64_t bytes_on(int device) {
  std::lock_guard const lock(memory().mutex);
  std::uint64_t sum = 0;
  for (auto const& [block, of] : memory().devices)
    if (of == device) sum += memory().sizes.at(block);
  return sum;
}

int device_of(void const* address) {
  std::lock_guard const lock(memory().mutex);
  auto const& all = memory().devices;
  auto after = all.upper_bound(const_cast<void*>(address));
  if (after == all.begin()) return -1;
  --after;
  auto const size = memory().sizes.at(after->first);
  auto const* const first = static_cast<char const*>(after->first);
  return static_cast<char const*>(address) < first + std::max<std::size_t>(size, 1) ? after->second
                                                                                    : -1;
}

std::uint64_t calls(Call call) { return state().calls[static_cast<std::size_t>(call)]; }

void fail(Call call, int nth, int code) {
  state().fail_in = nth;
  state().fail_code = code;
  state().fail_call = static_cast<int>(call);
}

void lose_device(int code) { state().lost = code; }

void set_machine(Machine const& machine) {
  state().devices = machine.devices;
  state().memory_bytes = machine.memory_bytes;
  state().driver = machine.driver;
  state().peers = machine.peers;
}

void jitter(unsigned seed) { state().jitter = seed; }
std::uint64_t aborts() { return state().aborts; }
void abort_takes(int ms) { state().abort_takes_ms = ms; }
void in_progress_polls(int polls) { state().in_progress_polls = polls; }
void nccl_version(int version) { state().nccl_version = version; }
void abort_hangs(bool on) {
  state().abort_hangs = on;
  state().abort_hangs.notify_all();
}

Live live() {
  auto const& all = state();
  return {all.streams,       all.events,      all.pools, all.graphs,
          all.communicators, all.allocations, all.bytes};
}

void reset() {
  auto& all = state();
  abort_hangs(false);
  nccl_settle();  // first: streams wait for what communicators do
  std::vector<cudaStream_t> retired;
  {
    std::lock_guard const lock(all.retired_mutex);
    retired.swap(all.retired);
    // What a test has left behind on purpose comes to its end as well. What cannot end is given up.
    for (auto* stream : all.living)
      wait_until([&] { return stream->done.load(std::memory_order_acquire) >= stream->pushed; },
                 10);
  }
  for (auto* stream : retired) {
    stream->worker.join();
    delete stream;
  }
  nccl_reset();
  {
    std::lock_guard const lock(graveyard().mutex);
    graveyard().events.clear();
  }
  for (auto& calls : all.calls) calls = 0;
  all.fail_call = -1;
  all.lost = 0;
  all.jitter = 0;
  all.in_progress_polls = 0;
  all.abort_takes_ms = 0;
  all.aborts = 0;
  all.nccl_version = 0;
  set_machine({});
  all.left_bytes = all.bytes.load();
  device = 0;
  last_error = cudaSuccess;
}

}  // namespace cuda_stand_in

void CUstream_st::push(Work work, bool always) {
  std::lock_guard const lock(producers);
  if (ended) return;  // a thread of NCCL's came to a stream that has just been destroyed
  ended = !work;
  auto* const item = new Item;
  item->work = std::move(work);
  item->always = always;
  pushed.fetch_add(1, std::memory_order_relaxed);
  Item* const before = std::exchange(last, item);
  before->next.store(item, std::memory_order_release);
  before->next.notify_one();
}

void CUstream_st::run(Item* at) {
  std::minstd_rand random(static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(this) >> 6U));
  for (;;) {
    at->next.wait(nullptr, std::memory_order_acquire);
    Item* const next = at->next.load(std::memory_order_acquire);
    delete std::exchange(at, next);
    if (!at->work) break;
    if (unsigned const seed = state().jitter.load(std::memory_order_relaxed); seed != 0) {
      auto const dice = (random() ^ seed) % 64;
      if (dice < 16) std::this_thread::yield();
      // Spreads the work of streams, so that tests see other orders; no outcome depends on it.
      if (dice < 2) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    if (at->always || state().lost.load(std::memory_order_relaxed) == 0) at->work();
    at->work = nullptr;
    done.fetch_add(1, std::memory_order_release);
    done.notify_all();
  }
  delete at;
}

// --- errors, devices ----------------------------------------------------------------------------

extern "C" {

char const* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated:
      return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorStreamCaptureUnjoined:
      return "cudaErrorStreamCaptureUnjoined";
    case cudaErrorStreamCaptureIsolation:
      return "cudaErrorStreamCaptureIsolation";
    case cudaErrorCapturedEvent:
      return "cudaErrorCapturedEvent";
    case cudaErrorGraphExecUpdateFailure:
      return "cudaErrorGraphExecUpdateFailure";
    default:
      return "cudaErrorUnknown";
  }
}
char const* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "an error of the stand-in";
}
cudaError_t cudaGetLastError() {
  return state().lost != 0 ? static_cast<cudaError_t>(state().lost.load())
                           : std::exchange(last_error, cudaSuccess);
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = state().driver;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {  // leaves the count alone where it fails, as CUDA does
  if (state().driver < CUDART_VERSION / 1000 * 1000) return answer(cudaErrorInsufficientDriver);
  if (state().devices == 0) return answer(cudaErrorNoDevice);
  *count = state().devices;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int index) {
  if (int const code = count(Call::set_device)) return answer(static_cast<cudaError_t>(code));
  if (index < 0 || index >= state().devices) return answer(cudaErrorInvalidDevice);
  device = index;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* index) {
  *index = device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int index) {
  if (index < 0 || index >= state().devices) return answer(cudaErrorInvalidDevice);
  *properties = cudaDeviceProp{};
  std::strcpy(properties->name, "stand-in");
  properties->major = 9;
  properties->totalGlobalMem = state().memory_bytes;
  properties->multiProcessorCount = 1;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  *total_bytes = state().memory_bytes;
  *free_bytes =
      *total_bytes - static_cast<std::size_t>(state().bytes.load() - state().left_bytes.load());
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

// --- streams and events -------------------------------------------------------------------------

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  if (int const code = count(Call::stream_create)) return answer(static_cast<cudaError_t>(code));
  if (state().lost != 0) return static_cast<cudaError_t>(state().lost.load());
  auto* const made = new CUstream_st;
  made->device = device;
  made->priority = priority;
  auto* const first = new CUstream_st::Item;
  made->last = first;
  made->worker = std::thread([made, first] { made->run(first); });
  ++state().streams;
  {
    std::lock_guard const lock(state().retired_mutex);
    state().living.push_back(made);
  }
  *stream = made;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (!alive(stream)) return answer(cudaErrorInvalidResourceHandle);
  stream->alive = false;
  stream->push({});
  --state().streams;
  std::lock_guard const lock(state().retired_mutex);
  std::erase(state().living, stream);
  state().retired.push_back(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  if (!alive(stream)) return answer(cudaErrorInvalidResourceHandle);
  *priority = stream->priority;
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (int const code = count(Call::stream_query)) return answer(static_cast<cudaError_t>(code));
  if (state().lost != 0) return static_cast<cudaError_t>(state().lost.load());
  if (!alive(stream)) return answer(cudaErrorInvalidResourceHandle);
  if (stream->capture) {
    stream->capture->broken = true;
    return answer(cudaErrorStreamCaptureUnsupported);
  }
  if (forbidden_in_capture()) return answer(cudaErrorStreamCaptureUnsupported);
  std::uint64_t const pushed = stream->pushed.load(std::memory_order_relaxed);
  if (stream->done.load(std::memory_order_relaxed) < pushed) return cudaErrorNotReady;
  static_cast<void>(stream->done.load(std::memory_order_acquire));
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (int const code = count(Call::stream_synchronize))
    return answer(static_cast<cudaError_t>(code));
  if (state().lost != 0) return static_cast<cudaError_t>(state().lost.load());
  if (stream == nullptr)  // the null stream's work is done at once
    return forbidden_in_capture() ? answer(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
  if (!alive(stream)) return answer(cudaErrorInvalidResourceHandle);
  if (stream->capture) {
    stream->capture->broken = true;
    return answer(cudaErrorStreamCaptureUnsupported);
  }
  if (forbidden_in_capture()) return answer(cudaErrorStreamCaptureUnsupported);
  std::uint64_t const pushed = stream->pushed.load(std::memory_order_relaxed);
  for (auto done = stream->done.load(std::memory_order_acquire); done < pushed;
       done = stream->done.load(std::memory_order_acquire))
    stream->done.wait(done, std::memory_order_acquire);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (int const code = count(Call::event_create)) return answer(static_cast<cudaError_t>(code));
  if (state().lost != 0) return static_cast<cudaError_t>(state().lost.load());
  *event = new CUevent_st;
  (*event)->device = device;
  (*event)->timed = (flags & cudaEventDisableTiming) == 0;
  ++state().events;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (event == nullptr || !event->alive.exchange(false))
    return answer(cudaErrorInvalidResourceHandle);
  --state().events;
  std::lock_guard const lock(graveyard().mutex);
  graveyard().events.emplace_back(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (int const code = count(Call::event_record)) return answer(static_cast<cudaError_t>(code));
  if (state().lost != 0) return static_cast<cudaError_t>(state().lost.load());
  if (event == nullptr || !event->alive || !alive(stream) || event->device != stream->device)
    return answer(cudaErrorInvalidResourceHandle);
  std::lock_guard const lock(event->mutex);
  event->capture = stream->capture;
  if (stream->capture) {
    auto const in_capture = use_capture(*stream->capture);
    event->frontier = stream->frontier;
    return cudaSuccess;
  }
  auto moment = std::make_shared<Moment>();
  event->recorded = moment;
  stream->push([moment] { moment->set(); }, true);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (int const code = count(Call::event_query)) return answer(static_cast<cudaError_t>(code));
  if (state().lost != 0) return static_cast<cudaError_t>(state().lost.load());
  if (event == nullptr || !event->alive) return answer(cudaErrorInvalidResourceHandle);
  if (forbidden_in_capture()) return answer(cudaErrorStreamCaptureUnsupported);
  std::lock_guard const lock(event->mutex);
  if (event->capture) return answer(cudaErrorCapturedEvent);
  return !event->recorded || event->recorded->happened() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  for (auto* event : {start, end}) {
    if (event == nullptr || !event->alive || !event->timed || event->capture || !event->recorded)
      return answer(cudaErrorInvalidResourceHandle);
    if (!event->recorded->happened()) return cudaErrorNotReady;
  }
  if (start->device != end->device) return answer(cudaErrorInvalidResourceHandle);
  *ms =
      std::chrono::duration<float, std::milli>(end->recorded->when - start->recorded->when).count();
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (int const code = count(Call::stream_wait_event))
    return answer(static_cast<cudaError_t>(code));
  if (state().lost != 0) return static_cast<cudaError_t>(state().lost.load());
  if (event == nullptr || !event->alive || !alive(stream))
    return answer(cudaErrorInvalidResourceHandle);
  std::lock_guard const lock(event->mutex);
  if (event->capture) {
    auto const& capture = event->capture;
    if (capture->ended) return answer(cudaErrorCapturedEvent);
    if (stream->capture && stream->capture != capture)
      return answer(cudaErrorStreamCaptureIsolation);
    auto const in_capture = use_capture(*capture);
    if (!stream->capture) {  // the stream joins the capture
      stream->capture = capture;
      stream->frontier.clear();
      capture->joined.push_back(stream);
    }
    join(stream->frontier, event->frontier);
    return cudaSuccess;
  }
  if (stream->capture) {
    stream->capture->broken = true;
    return answer(cudaErrorStreamCaptureIsolation);
  }
  if (auto const moment = event->recorded) stream->push([moment] { moment->wait(); }, true);
  return cudaSuccess;
}

// --- work and memory ----------------------------------------------------------------------------

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  if (int const code = count(Call::launch_host_func)) return answer(static_cast<cudaError_t>(code));
  if (state().lost != 0) return static_cast<cudaError_t>(state().lost.load());
  return enqueue(stream, Kind::host, [function, data] { function(data); });
}

}  // extern "C"

int cuda_stand_in::launch(cudaStream_t stream, std::function<void()> kernel) {
  if (int const code = count(Call::launch_kernel)) return answer(static_cast<cudaError_t>(code));
  if (state().lost != 0) return state().lost.load();
  if (alive(stream) && stream->device != device) return answer(cudaErrorInvalidResourceHandle);
  return enqueue(stream, Kind::kernel, std::move(kernel));
}

extern "C" {

cudaError_t cudaMemcpyAsync(void* to, void const* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  if (int const code = count(Call::memcpy_async)) return answer(static_cast<cudaError_t>(code));
  if (state().lost != 0) return static_cast<cudaError_t>(state().lost.load());
  if (!state().peers && device_of(to) >= 0 && device_of(from) >= 0 &&
      device_of(to) != device_of(from))
    return answer(cudaErrorInvalidValue);
  return enqueue(stream, Kind::copy, [to, from, bytes] {
    if (bytes != 0) std::memmove(to, from, bytes);  // which takes no null pointer
  });
}

cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, void const* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind, cudaStream_t stream) {
  if (int const code = count(Call::memcpy_async)) return answer(static_cast<cudaError_t>(code));
  if (state().lost != 0) return static_cast<cudaError_t>(state().lost.load());
  if (width > to_pitch || width > from_pitch) return answer(cudaErrorInvalidPitchValue);
  if (!state().peers && device_of(to) >= 0 && device_of(from) >= 0 &&
      device_of(to) != device_of(from))
    return answer(cudaErrorInvalidValue);
  return enqueue(stream, Kind::copy, [=] {
    for (std::size_t row = 0; width != 0 && row < height; ++row)
      std::memmove(static_cast<std::byte*>(to) + row * to_pitch,
                   static_cast<std::byte const*>(from) + row * from_pitch, width);
  });
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, void const* from, int from_device,
                                std::size_t bytes, cudaStream_t stream) {
  if (int const code = count(Call::memcpy_async)) return answer(static_cast<cudaError_t>(code));
  if (state().lost != 0) return static_cast<cudaError_t>(state().lost.load());
  if (device_of(to) != to_device || device_of(from) != from_device)
    return answer(cudaErrorInvalidValue);
  return enqueue(stream, Kind::copy, [to, from, bytes] {
    if (bytes != 0) std::memmove(to, from, bytes);  // which takes no null pointer
  });
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  if (int const code = count(Call::memset_async)) return answer(static_cast<cudaError_t>(code));
  if (state().lost != 0) return static_cast<cudaError_t>(state().lost.load());
  return enqueue(stream, Kind::set, [to, value, bytes] {
    if (bytes != 0) std::memset(to, value, bytes);
  });
}

cudaError_t cudaMemcpy(void* to, void const* from, std::size_t bytes, cudaMemcpyKind) {
  if (int const code = count(Call::memcpy)) return answer(static_cast<cudaError_t>(code));
  if (state().lost != 0) return static_cast<cudaError_t>(state().lost.load());
  if (forbidden_in_capture()) return answer(cudaErrorStreamCaptureUnsupported);
  if (bytes != 0) std::memmove(to, from, bytes);  // which takes no null pointer
  return cudaSuccess;
}

cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  if (int const code = count(Call::memset)) return answer(static_cast<cudaError_t>(code));
  if (state().lost != 0) return static_cast<cudaError_t>(state().lost.load());
  if (forbidden_in_capture()) return answer(cudaErrorStreamCaptureUnsupported);
  if (bytes != 0) std::memset(to, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  if (int const code = count(Call::malloc)) return answer(static_cast<cudaError_t>(code));
  if (state().lost != 0) return static_cast<cudaError_t>(state().lost.load());
  if (forbidden_in_capture()) return answer(cudaErrorStreamCaptureUnsupported);
  return allocate(pointer, bytes, device);
}
cudaError_t cudaFree(void* pointer) { return release(pointer); }

cudaError_t cudaMallocHost(void** pointer, std::size_t bytes) {
  if (int const code = count(Call::malloc_host)) return answer(static_cast<cudaError_t>(code));
  if (state().lost != 0) return static_cast<cudaError_t>(state().lost.load());
  if (forbidden_in_capture()) return answer(cudaErrorStreamCaptureUnsupported);
  return allocate(pointer, bytes);
}
cudaError_t cudaFreeHost(void* pointer) { return release(pointer); }

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, cudaMemPoolProps const* properties) {
  if (int const code = count(Call::pool_create)) return answer(static_cast<cudaError_t>(code));
  if (state().lost != 0) return static_cast<cudaError_t>(state().lost.load());
  *pool = new CUmemPoolHandle_st;
  (*pool)->device = properties->location.id;
  ++state().pools;
  return cudaSuccess;
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  delete pool;
  --state().pools;
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  if (int const code = count(Call::pool_set_attribute))
    return answer(static_cast<cudaError_t>(code));
  if (attribute == cudaMemPoolAttrReleaseThreshold)
    pool->release_threshold = *static_cast<std::uint64_t*>(value);
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int from, int to) {
  int const devices = state().devices;
  if (from < 0 || from >= devices || to < 0 || to >= devices || from == to)
    return answer(cudaErrorInvalidDevice);
  *can = state().peers ? 1 : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  if (peer < 0 || peer >= state().devices || peer == device) return answer(cudaErrorInvalidDevice);
  return state().peers ? cudaSuccess : answer(cudaErrorPeerAccessUnsupported);
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, cudaMemAccessDesc const* access,
                                 std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    if (access[i].location.id == pool->device || access[i].location.id >= state().devices)
      return answer(cudaErrorInvalidDevice);
  return cudaSuccess;
}
cudaError_t cudaMallocFromPoolAsync(void** pointer, std::size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream) {
  if (int const code = count(Call::malloc_from_pool)) return answer(static_cast<cudaError_t>(code));
  if (state().lost != 0) return static_cast<cudaError_t>(state().lost.load());
  if (pool == nullptr || !alive(stream)) return answer(cudaErrorInvalidResourceHandle);
  auto const result = allocate(pointer, bytes, pool->device);
  if (result != cudaSuccess || !stream->capture) return result;
  auto const& graph = stream->capture->memory;  // a node of the graph, whose memory it is
  graph->blocks.push_back({*pointer});
  {
    std::lock_guard const lock(memory().mutex);
    memory().graphs[*pointer] = graph;
  }
  return enqueue(stream, Kind::allocate,
                 [block = *pointer, bytes] { std::memset(block, 0xCD, bytes); });
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  if (state().lost != 0) {
    if (!graph_of(pointer)) release(pointer);
    return static_cast<cudaError_t>(state().lost.load());
  }
  if (!alive(stream)) return answer(cudaErrorInvalidResourceHandle);
  if (!known(pointer)) return answer(cudaErrorInvalidValue);
  auto const graph = graph_of(pointer);
  if (stream->capture) {  // a node; of what the same graph allocates alone
    auto* const block = stream->capture->memory->find(pointer);
    if (block == nullptr || block->freed) return answer(cudaErrorInvalidValue);
    block->freed = true;
    return enqueue(stream, Kind::free,
                   [pointer, bytes = size_of(pointer)] { std::memset(pointer, 0xDD, bytes); });
  }
  if (!graph) {
    stream->push([pointer] { release(pointer); }, true);
    return cudaSuccess;
  }
  std::lock_guard const lock(graph->mutex);
  auto* const block = graph->find(pointer);
  if (block->freed || !block->taken) return answer(cudaErrorInvalidValue);
  block->taken = false;
  stream->push([pointer, graph, bytes = size_of(pointer)] { std::memset(pointer, 0xDD, bytes); });
  return cudaSuccess;
}

// --- graphs -------------------------------------------------------------------------------------

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, interaction);
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  if (!alive(stream)) return answer(cudaErrorInvalidResourceHandle);
  *status = !stream->capture          ? cudaStreamCaptureStatusNone
            : stream->capture->broken ? cudaStreamCaptureStatusInvalidated
                                      : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (int const code = count(Call::begin_capture)) return answer(static_cast<cudaError_t>(code));
  if (state().lost != 0) return static_cast<cudaError_t>(state().lost.load());
  if (!alive(stream)) return answer(cudaErrorInvalidResourceHandle);
  if (stream->capture) return answer(cudaErrorIllegalState);
  stream->capture = std::make_shared<Capture>();
  stream->capture->origin = stream;
  stream->capture->mode = mode;
  stream->capture->thread = std::this_thread::get_id();
  stream->frontier.clear();
  if (mode != cudaStreamCaptureModeRelaxed) own_capture = stream->capture.get();
  if (mode == cudaStreamCaptureModeGlobal) ++state().global_captures;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  if (!alive(stream) || !stream->capture || stream->capture->origin != stream)
    return answer(cudaErrorIllegalState);
  auto const capture = stream->capture;
  if (capture->thread != std::this_thread::get_id() &&
      capture->mode != cudaStreamCaptureModeRelaxed)
    return answer(cudaErrorStreamCaptureWrongThread);
  if (capture->mode == cudaStreamCaptureModeGlobal) --state().global_captures;
  own_capture = nullptr;
  // Everything that the other streams did must come before what the origin did last.
  std::set<std::size_t> reached;
  std::vector<std::size_t> open = stream->frontier;
  while (!open.empty()) {
    std::size_t const n = open.back();
    open.pop_back();
    if (!reached.insert(n).second) continue;
    auto const& after = capture->nodes[n].after;
    open.insert(open.end(), after.begin(), after.end());
  }
  bool joined = reached.size() == capture->nodes.size();
  for (auto* other : capture->joined) {
    other->capture.reset();
    other->frontier.clear();
  }
  capture->ended = true;
  stream->capture.reset();
  stream->frontier.clear();
  if (capture->broken) return answer(cudaErrorStreamCaptureInvalidated);
  if (!joined) return answer(cudaErrorStreamCaptureUnjoined);
  *graph = new CUgraph_st{std::move(capture->nodes), capture->memory};
  ++state().graphs;
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, std::size_t* nodes) {
  *nodes = graph->nodes.size();
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  if (int const code = count(Call::graph_instantiate))
    return answer(static_cast<cudaError_t>(code));
  *exec = new CUgraphExec_st;
  (*exec)->nodes = std::make_shared<std::vector<Node> const>(graph->nodes);
  (*exec)->memory = graph->memory;
  ++state().graphs;
  return cudaSuccess;
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo* result) {
  if (int const code = count(Call::graph_update)) return answer(static_cast<cudaError_t>(code));
  std::lock_guard const lock(exec->mutex);
  bool same = exec->nodes->size() == graph->nodes.size() && exec->memory->blocks.empty() &&
              graph->memory->blocks.empty();  // memory of nodes is not taken over
  for (std::size_t n = 0; same && n < graph->nodes.size(); ++n)
    same = (*exec->nodes)[n].kind == graph->nodes[n].kind &&
           (*exec->nodes)[n].after == graph->nodes[n].after;
  result->result = same ? cudaGraphExecUpdateSuccess : cudaGraphExecUpdateErrorTopologyChanged;
  if (!same) return answer(cudaErrorGraphExecUpdateFailure);
  exec->nodes = std::make_shared<std::vector<Node> const>(graph->nodes);
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  int const code = count(Call::graph_launch);
  if (code != 0) return answer(static_cast<cudaError_t>(code));
  if (state().lost != 0) return static_cast<cudaError_t>(state().lost.load());
  if (!alive(stream)) return answer(cudaErrorInvalidResourceHandle);
  if (stream->capture) return answer(cudaErrorStreamCaptureUnsupported);
  std::lock_guard const lock(exec->mutex);
  {
    std::lock_guard const of_memory(exec->memory->mutex);
    for (auto const& block : exec->memory->blocks)  // of the last launch
      if (block.taken) return answer(cudaErrorInvalidValue);
    for (auto& block : exec->memory->blocks) block.taken = !block.freed;
  }
  auto const seed = static_cast<unsigned>(calls(Call::graph_launch));
  stream->push([nodes = exec->nodes, memory = exec->memory, seed] { run_graph(*nodes, seed); });
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  --state().graphs;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  --state().graphs;
  return cudaSuccess;
}

}  // extern "C"
