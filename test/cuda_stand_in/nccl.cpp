// SPDX-License-Identifier: Apache-2.0
// The stand-in's NCCL: ranks of one process that meet.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include <nccl.h>

#include "device.hpp"

using namespace cuda_stand_in;

namespace {

enum class OperationKind : std::uint8_t { send, receive, broadcast, all_reduce, all_gather };

struct Operation {
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  OperationKind what = OperationKind::send;
  void const* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclFloat;
  ncclRedOp_t reduction = ncclSum;
  int peer = 0;                // or root
  std::uint64_t captured = 0;  // which of its kind that was captured, counted from 1; 0: was not
};

/// A send that waits for its receive.
struct Message {
  void const* data;
  std::size_t bytes;
  std::uint64_t captured;
  bool taken = false;
};

/// One collective call of all ranks.
struct Rendezvous {
  std::vector<Operation> calls;                 // [ranks]
  std::vector<std::vector<std::byte>> results;  // [ranks]
  int arrived = 0;
  int computed = 0;
};

std::size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat64:
    case ncclInt64:
    case ncclUint64:
      return 8;
    case ncclFloat32:
    case ncclInt32:
    case ncclUint32:
      return 4;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    default:
      return 1;
  }
}

}  // namespace

/// Ranks that belong together. Its mutex guards all that follows, and the communicators' state.
struct World {
  std::mutex mutex;
  std::condition_variable moved;
  int size = 0;
  std::vector<ncclComm_t> members;
  int finalized = 0;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Message>>> edges;
  std::map<std::uint64_t, std::shared_ptr<Rendezvous>> open;
  struct Split {
    std::map<int, std::shared_ptr<World>> parts;  // by colour
    int calls = 0;
  };
  std::map<int, Split> splits;
};

/// What one ncclGroupEnd begins: a thread puts it on the streams. Until a communicator says that it
/// is through, nobody else may touch a graph that these streams are captured into.
struct Group {
  std::vector<std::shared_ptr<ncclComm>> comms;
  std::vector<std::shared_ptr<Capture>> captures;
  std::atomic<bool> begun{false};
  std::atomic<bool> done{false};
  std::thread thread;

  Group() = default;
  Group(Group const&) = delete;
  Group& operator=(Group const&) = delete;
  ~Group() {
    if (thread.joinable()) thread.join();
    seen();
  }
  void begin();
  void seen() noexcept {
    for (auto const& capture : captures) capture->in_use = false;
    captures.clear();
  }
};

struct ncclComm : std::enable_shared_from_this<ncclComm> {
  std::atomic<bool> alive{true};
  std::shared_ptr<World> world;
  int rank = 0;
  int ranks = 0;
  int device = 0;
  int version = 0;
  enum Phase : std::uint8_t {
    joining,
    idle,
    launching,
    splitting,
    finalizing,
    finalized
  } phase = joining;
  int polls = 0;
  ncclResult_t error = ncclSuccess;
  bool stuck = false;  // what is on the device does not end: an error there, not of a call
  bool aborted = false;
  std::string words;
  std::vector<Operation> pending;
  std::uint64_t collectives = 0;  // run so far
  int splits = 0;
  std::pair<int, int> order;         // of a part that is being made: key and old rank
  std::shared_ptr<Capture> capture;  // into which what is pending goes
  std::shared_ptr<Group> group;      // that is being launched
  std::shared_ptr<int> graphs = std::make_shared<int>();  // shared with nodes of graphs
  std::map<std::pair<OperationKind, int>, std::uint64_t>
      known;  // connections, and what was captured there
};

namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::uint64_t, std::shared_ptr<World>> worlds;
  std::vector<std::shared_ptr<ncclComm>> communicators;  // also those that are gone
  std::uint64_t next_id = 1;
};
Registry& registry() {
  static Registry all;
  return all;
}

thread_local int depth = 0;
thread_local std::vector<Operation> grouped;
thread_local ncclResult_t group_error = ncclSuccess;
thread_local std::string own_words;

/// With its mutex held: a call went wrong, which later calls are told.
ncclResult_t refused(ncclComm_t comm, ncclResult_t code, std::string words) {
  if (comm->error == ncclSuccess) {
    comm->error = code;
    comm->words = std::move(words);
  }
  return code;
}
/// With its mutex held: what is on the device, or on its way, went wrong.
ncclResult_t broken(ncclComm_t comm, ncclResult_t code, std::string words) {
  refused(comm, code, std::move(words));
  comm->stuck = true;
  comm->world->moved.notify_all();
  return code;
}

ncclComm_t make(std::shared_ptr<World> world, int ranks, int rank) {
  auto comm = std::make_shared<ncclComm>();
  comm->world = std::move(world);
  comm->ranks = ranks;
  comm->rank = rank;
  comm->device = current_device();
  comm->version = state().nccl_version != 0 ? state().nccl_version.load() : NCCL_VERSION_CODE;
  comm->polls = state().in_progress_polls;
  ++state().communicators;
  auto* const handle = comm.get();
  std::lock_guard const lock(registry().mutex);
  registry().communicators.push_back(std::move(comm));
  return handle;
}

template <class T> T combine(ncclRedOp_t reduction, T a, T b) {
  switch (reduction) {
    case ncclProd:
      return static_cast<T>(a * b);
    case ncclMax:
      return std::max(a, b);
    case ncclMin:
      return std::min(a, b);
    default:
      return static_cast<T>(a + b);
  }
}

/// Element by element, from the last rank to the first: NCCL promises no order.
template <class T>
void reduce(Rendezvous const& rendezvous, std::size_t first, std::size_t count, std::byte* result) {
  auto const reduction = rendezvous.calls.front().reduction;
  auto* const out = reinterpret_cast<T*>(result);
  for (std::size_t i = 0; i < count; ++i) {
    T sum{};
    for (std::size_t r = rendezvous.calls.size(); r-- > 0;) {
      T const value = static_cast<T const*>(rendezvous.calls[r].in)[first + i];
      sum = r + 1 == rendezvous.calls.size() ? value : combine(reduction, sum, value);
    }
    if (reduction == ncclAvg) sum = static_cast<T>(sum / static_cast<T>(rendezvous.calls.size()));
    out[i] = sum;
  }
}

void reduce_any(Rendezvous const& rendezvous, std::size_t first, std::size_t count,
                std::byte* result) {
  switch (rendezvous.calls.front().type) {
    case ncclFloat64:
      return reduce<double>(rendezvous, first, count, result);
    case ncclInt64:
      return reduce<std::int64_t>(rendezvous, first, count, result);
    case ncclUint64:
      return reduce<std::uint64_t>(rendezvous, first, count, result);
    case ncclFloat32:
      return reduce<float>(rendezvous, first, count, result);
    case ncclInt32:
      return reduce<std::int32_t>(rendezvous, first, count, result);
    case ncclUint32:
      return reduce<std::uint32_t>(rendezvous, first, count, result);
    case ncclInt8:
      return reduce<std::int8_t>(rendezvous, first, count, result);
    default:
      return reduce<std::uint8_t>(rendezvous, first, count, result);
  }
}

void compute(Rendezvous& rendezvous, int rank) {
  auto const& own = rendezvous.calls[static_cast<std::size_t>(rank)];
  std::size_t const each = own.count * bytes_of(own.type);
  auto& result = rendezvous.results[static_cast<std::size_t>(rank)];
  switch (own.what) {
    case OperationKind::broadcast:
      result.resize(each);
      std::memcpy(result.data(), rendezvous.calls[static_cast<std::size_t>(own.peer)].in, each);
      break;
    case OperationKind::all_gather:
      result.resize(each * rendezvous.calls.size());
      for (std::size_t r = 0; r < rendezvous.calls.size(); ++r)
        std::memcpy(result.data() + r * each, rendezvous.calls[r].in, each);
      break;
    default:
      result.resize(each);
      reduce_any(rendezvous, 0, own.count, result.data());
  }
}

bool same_call(Operation const& a, Operation const& b) {
  bool const rooted = a.what == OperationKind::broadcast;
  bool const reducing = a.what == OperationKind::all_reduce;
  return a.what == b.what && a.count == b.count && a.type == b.type && a.captured == b.captured &&
         (!rooted || a.peer == b.peer) && (!reducing || a.reduction == b.reduction);
}

/// One operation of a group while it runs.
struct Running {
  Operation call;
  std::shared_ptr<Message> message;
  std::shared_ptr<Rendezvous> rendezvous;
  std::uint64_t number = 0;
  bool arrived = false;
  bool computed = false;
  bool done = false;
};

/// Gets on with one operation, with the world's mutex held. @return whether anything moved
bool advance(World& world, ncclComm& comm, Running& run) {
  auto const& call = run.call;
  std::size_t const bytes = call.count * bytes_of(call.type);
  if (call.what == OperationKind::send) {
    if (!run.message) {
      run.message = std::make_shared<Message>(Message{call.in, bytes, call.captured});
      world.edges[{comm.rank, call.peer}].push_back(run.message);
      return true;
    }
    run.done = run.message->taken;
    return run.done;
  }
  if (call.what == OperationKind::receive) {
    auto& waiting = world.edges[{call.peer, comm.rank}];
    if (waiting.empty()) return false;
    auto const message = waiting.front();
    waiting.pop_front();
    if (message->captured != call.captured) {
      for (auto* member : world.members)
        broken(member, ncclInvalidUsage, "a message was captured at one end, or by another graph");
      return true;
    }
    if (message->bytes != bytes) {
      std::string const words = "mismatched counts: rank " + std::to_string(call.peer) + " sends " +
                                std::to_string(message->bytes) + " bytes, rank " +
                                std::to_string(comm.rank) + " receives " + std::to_string(bytes);
      for (auto* member : world.members) broken(member, ncclInvalidUsage, words);
      return true;
    }
    if (bytes != 0) std::memcpy(call.out, message->data, bytes);
    message->taken = true;
    return run.done = true;
  }
  if (!run.arrived) {
    run.number = comm.collectives++;
    auto& rendezvous = world.open[run.number];
    if (!rendezvous) {
      rendezvous = std::make_shared<Rendezvous>();
      rendezvous->calls.resize(static_cast<std::size_t>(world.size));
      rendezvous->results.resize(static_cast<std::size_t>(world.size));
    }
    run.rendezvous = rendezvous;
    run.rendezvous->calls[static_cast<std::size_t>(comm.rank)] = call;
    ++run.rendezvous->arrived;
    return run.arrived = true;
  }
  if (run.rendezvous->arrived < world.size) return false;
  if (!run.computed) {
    for (auto const& other : run.rendezvous->calls)
      if (!same_call(call, other)) {
        for (auto* member : world.members)
          broken(member, ncclInvalidUsage, "ranks make different collective calls");
        return true;
      }
    compute(*run.rendezvous, comm.rank);
    ++run.rendezvous->computed;
    return run.computed = true;
  }
  if (run.rendezvous->computed < world.size) return false;
  auto const& result = run.rendezvous->results[static_cast<std::size_t>(comm.rank)];
  std::memcpy(call.out, result.data(), result.size());
  world.open.erase(run.number);
  return run.done = true;
}

/// What the stream does for the operations of one group on one communicator: they progress
/// together.
void run_group(std::vector<Operation> const& calls) {
  ncclComm& comm = *calls.front().comm;
  World& world = *comm.world;
  std::vector<Running> running;
  for (auto const& call : calls) {
    Running run;
    run.call = call;
    running.push_back(std::move(run));
  }
  std::unique_lock lock(world.mutex);
  for (;;) {
    bool moved = false;
    bool done = true;
    for (auto& run : running) {
      if (comm.aborted) return;
      if (comm.stuck) {  // a kernel that nothing ends but an abort
        done = moved = false;
        break;
      }
      if (!run.done) moved = advance(world, comm, run) || moved;
      done = done && run.done;
    }
    if (moved) world.moved.notify_all();
    if (done) return;
    if (!moved) world.moved.wait(lock);
  }
}

/// Puts the pending group of a communicator on its stream, with the world's mutex held.
void launch(ncclComm_t comm) {
  auto calls = std::exchange(comm->pending, {});
  if (calls.empty() || comm->aborted) return;
  auto* const stream = calls.front().stream;
  if (stream->capture != std::exchange(comm->capture, nullptr)) {
    broken(comm, ncclInvalidUsage, "a capture began or ended while the communicator was busy");
    return;
  }
  auto graphs = stream->capture ? comm->graphs : nullptr;
  if (enqueue(stream, Kind::nccl, [calls = std::move(calls), graphs = std::move(graphs)] {
        run_group(calls);
      }) != cudaSuccess)
    broken(comm, ncclUnhandledCudaError, "the stream is gone");
}

/// Makes the connections of a group, or counts what is captured.
bool prepare(ncclComm& comm, std::vector<Operation>& calls) {
  comm.capture = calls.front().stream->capture;
  for (auto& call : calls) {
    bool const to_one = call.what == OperationKind::send || call.what == OperationKind::receive;
    std::pair<OperationKind, int> const key(call.what, to_one ? call.peer : -1);
    if (!comm.capture) {
      comm.known.emplace(key, 0);
      continue;
    }
    auto const found = comm.known.find(key);
    if (found == comm.known.end()) return false;
    call.captured = ++found->second;
  }
  return true;
}

ncclResult_t submit_one(ncclComm_t comm, std::vector<Operation> calls,
                        std::shared_ptr<Group> const& group) {
  std::lock_guard const lock(comm->world->mutex);
  if (comm->error != ncclSuccess) return comm->error;  // it stays
  if (comm->phase != ncclComm::idle)
    return refused(comm, ncclInvalidUsage, "a call while the communicator is in progress");
  int to_self = 0;
  for (auto const& call : calls) {
    if (call.stream != calls.front().stream)
      return refused(comm, ncclInvalidArgument, "the stand-in takes one stream in a group");
    if (call.peer == comm->rank && call.what == OperationKind::send) ++to_self;
    if (call.peer == comm->rank && call.what == OperationKind::receive) --to_self;
  }
  if (!prepare(*comm, calls))
    return refused(comm, ncclInvalidUsage, "a connection would have to be made during a capture");
  if (to_self != 0)
    return refused(comm, ncclInvalidUsage, "Trying to send to self without a matching recv");
  if (comm->capture) {
    auto& captures = group->captures;
    if (std::find(captures.begin(), captures.end(), comm->capture) == captures.end()) {
      if (comm->capture->in_use.exchange(true))
        misuse("two threads of NCCL's edit one captured graph at a time");
      captures.push_back(comm->capture);
    }
  }
  comm->pending = std::move(calls);
  comm->polls = state().in_progress_polls;
  comm->phase = ncclComm::launching;
  comm->group = group;
  group->comms.push_back(comm->shared_from_this());
  return ncclInProgress;
}

ncclResult_t submit_group() {
  auto const calls = std::exchange(grouped, {});
  auto result = std::exchange(group_error, ncclSuccess);
  if (int const code = count(Call::group_end)) result = static_cast<ncclResult_t>(code);
  std::vector<ncclComm_t> comms;
  for (auto const& call : calls)
    if (std::find(comms.begin(), comms.end(), call.comm) == comms.end()) comms.push_back(call.comm);
  auto const group = std::make_shared<Group>();
  for (auto* comm : comms) {
    if (result != ncclSuccess && result != ncclInProgress) break;
    std::vector<Operation> own;
    std::copy_if(calls.begin(), calls.end(), std::back_inserter(own),
                 [&](Operation const& call) { return call.comm == comm; });
    result = submit_one(comm, std::move(own), group);
  }
  if (result == ncclInProgress && state().in_progress_polls == 0) group->begin();
  if (result == ncclSuccess || result == ncclInProgress) return result;
  for (auto* comm : comms) {  // what goes wrong in a group is the error of all of it, and stays
    std::shared_ptr<Group> spent;
    std::lock_guard const lock(comm->world->mutex);
    refused(comm, result, "another call of its group was refused");
    comm->pending.clear();
    spent.swap(comm->group);
  }
  return result;
}

ncclResult_t add(Operation const& call) {
  if (call.comm == nullptr || !call.comm->alive) {
    own_words = "the communicator is gone";
    return ncclInvalidArgument;
  }
  if (call.peer < 0 || call.peer >= call.comm->ranks || !alive(call.stream)) {
    std::lock_guard const lock(call.comm->world->mutex);
    refused(call.comm, ncclInvalidArgument, "peer or stream do not exist");
    if (depth > 0) group_error = ncclInvalidArgument;
    return ncclInvalidArgument;
  }
  grouped.push_back(call);
  return depth > 0 ? ncclSuccess : submit_group();
}

/// All ranks are there: do they fit?
void check_members(World& world) {
  for (auto* a : world.members)
    for (auto* b : world.members) {
      if (a == b) continue;
      std::string words;
      if (a->device == b->device)
        words = "Multiple ranks are using the same GPU: rank " + std::to_string(a->rank) +
                " and rank " + std::to_string(b->rank) + " both on CUDA device " +
                std::to_string(a->device);
      else if (a->version != b->version)
        words = "Mismatched NCCL version detected : rank " + std::to_string(a->rank) + " version " +
                std::to_string(a->version) + " rank " + std::to_string(b->rank) + " version " +
                std::to_string(b->version);
      if (!words.empty())
        for (auto* member : world.members) broken(member, ncclInvalidUsage, words);
    }
}

/// Numbers the ranks of a part once all have asked for the split. Members hold (key, old rank) in
/// `order` until then.
void number_ranks(World& part) {
  std::lock_guard const lock(part.mutex);
  std::sort(part.members.begin(), part.members.end(),
            [](ncclComm_t a, ncclComm_t b) { return a->order < b->order; });
  part.size = static_cast<int>(part.members.size());
  for (std::size_t i = 0; i < part.members.size(); ++i) {
    part.members[i]->rank = static_cast<int>(i);
    part.members[i]->ranks = part.size;
  }
}

bool expect(ncclComm_t comm) {
  refuse_at_exit("a call of NCCL");
  return comm != nullptr && comm->alive;
}

}  // namespace

void Group::begin() {
  if (begun.exchange(true)) return;
  // The thread owns the communicators as well: one may be aborted while it runs.
  thread = std::thread([this, all = comms] {
    thread_of_nccl = true;
    for (auto const& comm : all) {
      std::lock_guard const lock(comm->world->mutex);
      launch(comm.get());
    }
    done.store(true, std::memory_order_release);
  });
}

namespace cuda_stand_in {

void nccl_settle() {
  // Aborts may be under way, or about to begin, on threads that nobody waits for. What is there once
  // none has been under way for two seconds was leaked.
  while (!wait_until([] { return state().communicators == 0; }, 2) && state().aborting != 0) {
  }
}

void nccl_reset() {
  std::lock_guard const lock(registry().mutex);
  for (auto& comm : registry().communicators)
    if (!comm->alive) comm->group.reset();  // it owns its communicators: a circle otherwise
  std::erase_if(registry().communicators, [](auto const& comm) { return !comm->alive; });
  registry().worlds.clear();
}

void break_communicators(int rank, int ranks, int code) {
  std::lock_guard const lock(registry().mutex);
  for (auto& comm : registry().communicators)
    if (comm->alive && comm->rank == rank && comm->ranks == ranks) {
      std::lock_guard const inner(comm->world->mutex);
      broken(comm.get(), static_cast<ncclResult_t>(code), "an injected error");
    }
}

int incomplete_calls() {
  std::set<std::shared_ptr<World>> worlds;
  {
    std::lock_guard const lock(registry().mutex);
    for (auto& comm : registry().communicators)
      if (comm->alive) worlds.insert(comm->world);
  }
  int result = 0;
  for (auto const& world : worlds) {
    std::lock_guard const lock(world->mutex);
    for (auto const& [number, rendezvous] : world->open)
      if (rendezvous->arrived < world->size) ++result;
  }
  return result;
}

}  // namespace cuda_stand_in

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = state().nccl_version != 0 ? state().nccl_version.load() : NCCL_VERSION_CODE;
  return ncclSuccess;
}

char const* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

char const* ncclGetLastError(ncclComm_t comm) {
  return comm != nullptr && !comm->words.empty() ? comm->words.c_str() : own_words.c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::lock_guard const lock(registry().mutex);
  std::memset(id, 0, sizeof *id);
  std::memcpy(id->internal, &registry().next_id, sizeof registry().next_id);
  registry().worlds[registry().next_id++] = std::make_shared<World>();
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  *comm = nullptr;
  if (int const code = count(Call::comm_init)) return static_cast<ncclResult_t>(code);
  std::uint64_t number = 0;
  std::memcpy(&number, id.internal, sizeof number);
  std::shared_ptr<World> world;
  {
    std::lock_guard const lock(registry().mutex);
    auto const found = registry().worlds.find(number);
    if (found != registry().worlds.end()) world = found->second;
  }
  if (!world || rank < 0 || rank >= ranks || config == nullptr || config->blocking != 0) {
    own_words = "the stand-in joins ranks 0 to n - 1 by its own ids, with blocking = 0";
    return ncclInvalidArgument;
  }
  auto* const made = make(world, ranks, rank);
  std::lock_guard const lock(world->mutex);
  world->size = ranks;
  world->members.push_back(made);
  if (static_cast<int>(world->members.size()) == ranks) check_members(*world);
  *comm = made;
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* answer) {
  if (!expect(comm)) return ncclInvalidArgument;
  auto const world = comm->world;
  std::shared_ptr<Group> launched;  // ends behind the lock
  std::lock_guard const lock(world->mutex);
  bool done = true;
  if (comm->phase == ncclComm::joining)
    done = static_cast<int>(comm->world->members.size()) == comm->ranks && comm->ranks > 0;
  if (comm->phase == ncclComm::finalizing)  // graphs that refer to it must be gone
    done = world->finalized == world->size && comm->graphs.use_count() == 1;
  if (comm->phase == ncclComm::splitting) {
    auto& split = world->splits[comm->splits - 1];
    done = split.calls == world->size;
  }
  if (comm->error != ncclSuccess) {
    *answer = comm->error;
    return ncclSuccess;
  }
  if (done && comm->polls > 0) {
    --comm->polls;
    done = false;
  } else if (comm->phase == ncclComm::launching) {
    comm->group->begin();
    done = comm->group->done.load(std::memory_order_acquire);
  }
  *answer = done ? ncclSuccess : ncclInProgress;
  if (!done) return ncclSuccess;
  if (comm->phase == ncclComm::launching) {
    launched.swap(comm->group);
    launched->seen();
  }
  if (comm->phase == ncclComm::finalizing)
    comm->phase = ncclComm::finalized;
  else if (comm->phase != ncclComm::finalized)
    comm->phase = ncclComm::idle;
  *answer = comm->error;
  return ncclSuccess;
}

ncclResult_t ncclCommCount(ncclComm_t comm, int* ranks) {
  if (!expect(comm)) return ncclInvalidArgument;
  *ranks = comm->ranks;
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  if (!expect(comm)) return ncclInvalidArgument;
  *rank = comm->rank;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (!expect(comm)) return ncclInvalidArgument;
  std::lock_guard const lock(comm->world->mutex);
  if (comm->error != ncclSuccess || comm->phase != ncclComm::idle)
    return refused(comm, ncclInvalidUsage, "finalize of a communicator that is not idle");
  comm->phase = ncclComm::finalizing;
  comm->polls = state().in_progress_polls;
  ++comm->world->finalized;
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!expect(comm)) return ncclInvalidArgument;
  std::lock_guard const lock(comm->world->mutex);
  if (comm->phase != ncclComm::finalized)  // would wait for the others
    return refused(comm, ncclInvalidUsage, "destroy of a communicator that was not finalized");
  comm->alive = false;
  --state().communicators;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (!expect(comm)) return ncclInvalidArgument;
  ++state().aborting;
  auto const world = comm->world;  // the handle may go as soon as it is not alive
  {
    std::lock_guard const lock(world->mutex);
    if (comm->error == ncclSuccess && comm->phase != ncclComm::joining) ++state().aborts;
  }
  // How long an abort takes. A caller that waits for it does so however long it is; one that does
  // not is found out because the process ends meanwhile.
  std::this_thread::sleep_for(std::chrono::milliseconds(state().abort_takes_ms));
  state().abort_hangs.wait(true);
  std::shared_ptr<Group> launched;  // ends behind the lock
  {
    std::lock_guard const lock(world->mutex);
    comm->aborted = true;
    launched.swap(comm->group);
    world->moved.notify_all();
    comm->alive = false;
  }
  --state().communicators;
  --state().aborting;
  return ncclSuccess;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int colour, int key, ncclComm_t* part, ncclConfig_t*) {
  *part = nullptr;
  if (!expect(comm)) return ncclInvalidArgument;
  std::lock_guard const lock(comm->world->mutex);
  if (comm->error != ncclSuccess || comm->phase != ncclComm::idle)
    return refused(comm, ncclInvalidUsage, "split of a communicator that is not idle");
  auto& split = comm->world->splits[comm->splits++];
  comm->phase = ncclComm::splitting;
  comm->polls = state().in_progress_polls;
  if (colour != NCCL_SPLIT_NOCOLOR) {
    auto& world = split.parts[colour];
    if (!world) world = std::make_shared<World>();
    auto* const made = make(world, 0, 0);
    std::lock_guard const inner(world->mutex);
    made->device = comm->device;
    made->order = {key, comm->rank};
    world->members.push_back(made);
    *part = made;
  }
  if (++split.calls == comm->world->size)
    for (auto& [c, world] : split.parts) number_ranks(*world);
  return ncclInProgress;
}

ncclResult_t ncclGroupStart() {
  ++depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (depth == 0) return ncclInvalidUsage;
  return --depth == 0 ? submit_group() : ncclSuccess;
}

ncclResult_t ncclSend(void const* data, std::size_t elements, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  Operation call;
  call.comm = comm;
  call.stream = stream;
  call.what = OperationKind::send;
  call.in = data;
  call.count = elements;
  call.type = type;
  call.peer = peer;
  return add(call);
}
ncclResult_t ncclRecv(void* data, std::size_t elements, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  Operation call;
  call.comm = comm;
  call.stream = stream;
  call.what = OperationKind::receive;
  call.out = data;
  call.count = elements;
  call.type = type;
  call.peer = peer;
  return add(call);
}
ncclResult_t ncclBroadcast(void const* in, void* out, std::size_t elements, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  return add({comm, stream, OperationKind::broadcast, in, out, elements, type, ncclSum, root, 0});
}
ncclResult_t ncclAllReduce(void const* in, void* out, std::size_t elements, ncclDataType_t type,
                           ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream) {
  return add({comm, stream, OperationKind::all_reduce, in, out, elements, type, reduction, 0, 0});
}
ncclResult_t ncclAllGather(void const* in, void* out, std::size_t elements, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return add({comm, stream, OperationKind::all_gather, in, out, elements, type, ncclSum, 0, 0});
}

}  // extern "C"
