// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The messages outside of steps between processes that share a pipeline, by calls that all
///         of them make in the same order, each with a deadline.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/collective/launcher.hpp>
#include <stagger/core/backoff.hpp>
#include <stagger/mpi/detail/pieces.hpp>
#include <stagger/mpi/session.hpp>

namespace stagger::mpi::detail {

using stagger::detail::Backoff;

/// How a process waits in a step. Stages take milliseconds, so if there are more processes than
/// cores, a waiting process should leave its core to those that compute.
[[nodiscard]] inline Backoff between_stages(std::chrono::microseconds spin) noexcept {
  using namespace std::chrono_literals;
  return Backoff(spin, spin < 1ms ? 100us : 20ms);
}

/// How long to poll without a pause; short if another process waits for the core.
[[nodiscard]] inline std::chrono::microseconds spin_time() {
  auto const launch = collective::find_launch();
  auto const cores = static_cast<int>(std::thread::hardware_concurrency());
  bool const shared = launch && cores > 0 && launch->local_size > cores;
  return std::chrono::microseconds(shared ? 20 : 1000);
}

/// Waits until MPI has ended all of these requests, or refuses one.
/// @param code  what MPI says
/// @return false if it has not after this many seconds
[[nodiscard]] inline bool wait_for(std::span<MPI_Request> requests, int& code, double seconds,
                                   std::chrono::microseconds spin) {
  auto const ended = [&] {
    int done = 0;
    code = MPI_Testall(count_for(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE);
    return code != MPI_SUCCESS || done != 0;
  };
  return stagger::detail::wait_until(ended, seconds, Backoff(spin, std::chrono::milliseconds(20)));
}

/// Also detects a program that Slurm has started without its MPI plug-in, which runs as many worlds
/// of one process each.
/// @param size    processes of the communicator
/// @param places  ranks, or as many processes as a placement names
/// @throws Error bad_configuration for processes without a rank, or if MPI does not see the
///         processes that the launcher has started
[[nodiscard]] inline MPI_Comm callable(MPI_Comm processes, int size, int places) {
  if (places < size)
    raise(Errc::bad_configuration, "MPI started ", counted(size, "process"), " for ",
          counted(places, "rank"), "; start at most one for each rank, or give Options::replicas");
  auto const launch = collective::find_launch();
  if (processes == MPI_COMM_WORLD && launch && launch->size != size)
    raise(Errc::bad_configuration, launch->launcher, " says that there are ", launch->size,
          " processes, but MPI sees ", size,
          "; start the program with the mpirun of this MPI, or with srun --mpi=pmix");
  return processes;
}

/// Makes a further MPI communicator, for the rest of the run. Every process calls it.
/// @param processes  only queried, never used for messages
/// @throws Error Errc::deadline if a process does not call it
[[nodiscard]] inline MPI_Comm duplicate(MPI_Comm processes, double deadline_s) {
  int size = 0;
  MPI_Comm_size(processes, &size);
  MPI_Errhandler before = MPI_ERRHANDLER_NULL;
  MPI_Comm_get_errhandler(processes, &before);
  MPI_Comm_set_errhandler(processes, MPI_ERRORS_RETURN);
  auto made = std::make_unique<MPI_Comm>(MPI_COMM_NULL);
  MPI_Request request = MPI_REQUEST_NULL;
  int code = MPI_Comm_idup(processes, made.get(), &request);
  bool const all = code != MPI_SUCCESS ||
                   wait_for({&request, 1}, code, deadline_s, std::chrono::microseconds(0));
  MPI_Comm_set_errhandler(processes, before);
  MPI_Errhandler_free(&before);
  check(code, "MPI_Comm_idup");
  if (!all) {
    peers_may_be_lost = true;
    static_cast<void>(made.release());  // MPI may still write to it
    raise(Errc::deadline, "not all ", size, " processes have come after ", deadline_s,
          " s; look for one that died or hangs");
  }
  MPI_Comm_set_errhandler(*made, MPI_ERRORS_RETURN);
  return *made;
}

/// One process's end. MPI works on memory of this object, which is left to MPI after a deadline,
/// since a collective call cannot be cancelled; all later calls then fail.
///
/// Every call blocks for at most the given seconds. `what` completes the sentence "process 1 waited
/// 10 s for the others to ...".
class Exchange {
 public:
  /// A message of `swap`, in the memory of this object.
  struct Message {
    int peer = 0;
    bool out = false;
    std::byte* at = nullptr;
    std::size_t bytes = 0;
  };

  Exchange(MPI_Comm processes, double deadline_s)
      : processes_(duplicate(processes, deadline_s)), spin_(spin_time()) {
    MPI_Comm_rank(processes_, &rank_);
    MPI_Comm_size(processes_, &size_);
  }
  Exchange(Exchange const&) = delete;
  Exchange& operator=(Exchange const&) = delete;

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }

  /// Memory for `swap`, valid until the next other call.
  [[nodiscard]] std::byte* memory(std::size_t bytes) {
    if (memory_.size() < bytes) memory_.resize(bytes);
    return memory_.data();
  }

  /// Sends the bytes of process `root` to all.
  void broadcast(std::span<std::byte> bytes, int root, char const* what, double seconds) {
    in_pieces(bytes, rank_ == root, [&](std::byte* at, std::size_t count) {
      start("MPI_Ibcast", what, [&](MPI_Request* request) {
        return MPI_Ibcast(at, count_for(count), MPI_BYTE, root, processes_, request);
      });
      finish("MPI_Ibcast", what, seconds);
    });
  }
  /// Sends bytes to one process, which receives as many.
  void send(std::span<std::byte const> bytes, int peer, char const* what, double seconds) {
    auto* const first = const_cast<std::byte*>(bytes.data());  // only read
    in_pieces({first, bytes.size()}, true, [&](std::byte* at, std::size_t count) {
      swap(std::array{Message{peer, true, at, count}}, what, seconds);
    });
  }
  void receive(std::span<std::byte> bytes, int peer, char const* what, double seconds) {
    in_pieces(bytes, false, [&](std::byte* at, std::size_t count) {
      swap(std::array{Message{peer, false, at, count}}, what, seconds);
    });
  }
  /// Sends and receives all these messages at once.
  void swap(std::span<Message const> messages, char const* what, double seconds) {
    for (bool const out : {false, true})
      for (Message const& m : messages) {
        if (m.out != out) continue;
        int const count = count_for(m.bytes);
        start(out ? "MPI_Isend" : "MPI_Irecv", what, [&](MPI_Request* request) {
          return out ? MPI_Isend(m.at, count, MPI_BYTE, m.peer, 0, processes_, request)
                     : MPI_Irecv(m.at, count, MPI_BYTE, m.peer, 0, processes_, request);
        });
      }
    finish("MPI_Testall", what, seconds);
  }
  /// Gathers in every process part p of `all` from process p; there are as many equal parts as
  /// processes.
  void all_gather(std::span<std::byte> all, char const* what, double seconds) {
    int const part = count_for(all.size() / static_cast<unsigned>(size_));
    in_place(all, "MPI_Iallgather", what, seconds, [&](std::byte* at, MPI_Request* request) {
      return MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, at, part, MPI_BYTE, processes_,
                            request);
    });
  }
  /// The maximum of each number over all processes.
  void maximum(std::span<double> numbers, char const* what, double seconds) {
    int const count = count_for(numbers.size());
    in_place(std::as_writable_bytes(numbers), "MPI_Iallreduce", what, seconds,
             [&](std::byte* at, MPI_Request* request) {
               return MPI_Iallreduce(MPI_IN_PLACE, at, count, MPI_DOUBLE, MPI_MAX, processes_,
                                     request);
             });
  }
  /// An MPI communicator of the processes with `joins`, in their order, for the rest of the run;
  /// MPI_COMM_NULL for the others.
  [[nodiscard]] MPI_Comm part(bool joins, char const* what, double seconds) {
    start("MPI_Ibarrier", what,
          [&](MPI_Request* request) { return MPI_Ibarrier(processes_, request); });
    finish("MPI_Ibarrier", what, seconds);  // so that what follows, which blocks, ends
    MPI_Comm made = MPI_COMM_NULL;
    check(MPI_Comm_split(processes_, joins ? 0 : MPI_UNDEFINED, rank_, &made), "MPI_Comm_split",
          who());
    if (made != MPI_COMM_NULL) MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN);
    return made;
  }

 private:
  static constexpr std::size_t piece = std::size_t{1} << 16;

  [[nodiscard]] std::string who() const { return text("process ", rank_); }

  /// Calls `move(memory of this object, count)` for each piece of memory that lies elsewhere.
  template <class Move> void in_pieces(std::span<std::byte> bytes, bool out, Move move) {
    each_piece(bytes.size(), piece, [&](std::size_t at, std::size_t count) {
      std::byte* const here = memory(count);
      if (out) std::memcpy(here, bytes.data() + at, count);
      move(here, count);
      if (!out) std::memcpy(bytes.data() + at, here, count);
    });
  }

  /// A collective call on a copy of memory that lies elsewhere: `begin(the copy, request)`.
  template <class Begin>
  void in_place(std::span<std::byte> bytes, char const* call, char const* what, double seconds,
                Begin begin) {
    std::byte* const here = memory(bytes.size());
    std::memcpy(here, bytes.data(), bytes.size());
    start(call, what, [&](MPI_Request* request) { return begin(here, request); });
    finish(call, what, seconds);
    std::memcpy(bytes.data(), here, bytes.size());
  }

  template <class Start> void start(char const* call, char const* what, Start begin) {
    if (broken_) raise(Errc::peer_failed, "processes cannot ", what, ": ", *broken_);
    MPI_Request request = MPI_REQUEST_NULL;
    int const code = begin(&request);
    if (code != MPI_SUCCESS) fail(code, call);
    requests_.push_back(request);
  }
  void finish(char const* call, char const* what, double seconds) {
    int code = MPI_SUCCESS;
    bool const all = wait_for(requests_, code, seconds, spin_);
    if (code != MPI_SUCCESS) fail(code, call);
    requests_.clear();
    if (all) return;
    give_up(text(who(), " waited ", seconds, " s for the others to ", what,
                 "; check that each of them is still running, and make the same calls in all"));
    raise(Errc::deadline, *broken_);
  }
  [[noreturn]] void fail(int code, char const* call) {
    give_up(text(call, " failed for ", who(), ": ", error_text(code)));
    check(code, call, who());
    raise(Errc::io, *broken_);
  }
  void give_up(std::string words) {
    peers_may_be_lost = true;
    requests_.clear();
    new std::vector<std::byte>(std::exchange(memory_, {}));  // MPI may still use it
    broken_ = std::move(words);
  }

  MPI_Comm processes_;
  std::chrono::microseconds spin_;
  int rank_ = 0;
  int size_ = 1;
  std::vector<std::byte> memory_{};
  std::vector<MPI_Request> requests_{};
  std::optional<std::string> broken_{};
};

}  // namespace stagger::mpi::detail
