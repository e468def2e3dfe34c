// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A stand-in for the CUDA runtime and NCCL, linked instead of them into tests: how a test
/// steers and reads it.
///
/// Every stream is a thread that works its queue off in order; "device memory" is host memory,
/// filled with 0xCD when it is handed out and with 0xDD when it goes back. Communicators join the
/// threads of one process, with true rendezvous; a group is launched by a thread of its own, and an
/// error of a communicator stays. A graph is replayed with room for one node of NCCL's on a device
/// at a time. What it does not have: kernels, a limit on what else runs at once, implicit
/// synchronisation of the null stream, several streams of one communicator in one NCCL group.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

struct CUstream_st;

namespace cuda_stand_in {

/// The calls that are counted and that can be made to fail.
enum class Call : int {
  set_device,
  stream_create,
  stream_wait_event,
  stream_query,
  stream_synchronize,
  event_create,
  event_record,
  event_query,
  launch_host_func,
  launch_kernel,
  memcpy_async,
  memset_async,
  memcpy,
  memset,
  malloc,
  malloc_host,
  malloc_from_pool,
  pool_create,
  pool_set_attribute,
  begin_capture,
  graph_instantiate,
  graph_update,
  graph_launch,
  group_end,
  comm_init,
  count
};

/// How often a call was made since the last reset.
[[nodiscard]] std::uint64_t calls(Call call);

/// What stands for a kernel: a function that a stream, or a graph, keeps a copy of. Counted and
/// made to fail as `Call::launch_kernel`. @return a cudaError_t
[[nodiscard]] int launch(CUstream_st* stream, std::function<void()> kernel);

/// The device whose memory an address is of, inside a block as well; -1: of none.
[[nodiscard]] int device_of(void const* address);

/// The bytes of a device's memory that are handed out.
[[nodiscard]] std::uint64_t bytes_on(int device);

/// The `nth` call from now on (counted from 1) answers `code`: a cudaError_t, or for the last two
/// an ncclResult_t. Once.
void fail(Call call, int nth, int code);

/// From now on the device is lost: every CUDA call answers `code`, and no more work is done.
void lose_device(int code);

/// The machine: devices, bytes on each, the driver's version (1000 * major + 10 * minor; 0: no
/// driver), and whether devices reach each other's memory.
struct Machine {
  int devices = 4;
  std::uint64_t memory_bytes = std::uint64_t{1} << 30U;
  int driver = 13000;
  bool peers = true;
};
void set_machine(Machine const& machine);

/// Streams yield and sleep at random between two pieces of work. 0: they do not.
void jitter(unsigned seed);

/// How many times a communicator answers ncclInProgress after a call before it is done, and before
/// the work of a group is on its stream.
void in_progress_polls(int polls);

/// The NCCL version of the next ranks that join a communicator.
void nccl_version(int version);

/// Collective calls that the streams of some ranks have come to, and those of others have not.
[[nodiscard]] int incomplete_calls();

/// An asynchronous error of a rank's communicator, in all communicators with so many ranks.
void break_communicators(int rank, int ranks, int code);

/// While on, ncclCommAbort does not return.
void abort_hangs(bool on);
/// How long it takes to return.
void abort_takes(int ms);
/// How many communicators without an error have been aborted since the last reset.
[[nodiscard]] std::uint64_t aborts();

/// What was done since the last look that CUDA or NCCL leave undefined. A session that ends with
/// some of it ends the process.
[[nodiscard]] std::vector<std::string> take_misuses();
/// Of a process that calls CUDA or NCCL while it ends.
inline constexpr int exit_code_of_misuse = 99;

/// What has been made and not given back.
struct Live {
  std::int64_t streams = 0;
  std::int64_t events = 0;
  std::int64_t pools = 0;
  std::int64_t graphs = 0;
  std::int64_t communicators = 0;
  std::int64_t allocations = 0;
  std::int64_t bytes = 0;
  friend bool operator==(Live const&, Live const&) = default;
};
[[nodiscard]] Live live();

/// Everything as at the start; waits for streams that were destroyed while they still had work.
/// What is still alive stays and counts as leaked.
void reset();

/// One test's use of the stand-in.
class Session {
 public:
  Session() {
    reset();
    before_ = live();
  }
  Session(Session const&) = delete;
  Session& operator=(Session const&) = delete;
  ~Session() {
    reset();
    auto const misuses = take_misuses();
    for (auto const& words : misuses) std::fprintf(stderr, "misuse: %s\n", words.c_str());
    if (!misuses.empty()) std::abort();
  }

  /// What this test has made and not given back.
  [[nodiscard]] Live left() const {
    Live const now = live();
    return {now.streams - before_.streams,
            now.events - before_.events,
            now.pools - before_.pools,
            now.graphs - before_.graphs,
            now.communicators - before_.communicators,
            now.allocations - before_.allocations,
            now.bytes - before_.bytes};
  }

 private:
  Live before_;
};

}  // namespace cuda_stand_in
