// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The lifetime of MPI: it is initialised once, by the program or by a Session, and
///         finalised by the one that initialised it.

#include <atomic>
#include <cstdint>

#include <stagger/core/backoff.hpp>
#include <stagger/mpi/error.hpp>

namespace stagger::mpi {

/// The threads that may call MPI, with the names and the order of the standard.
enum class Threads : std::uint8_t {
  single,      ///< the process has one thread
  funneled,    ///< only the thread that initialised MPI
  serialized,  ///< every thread, one at a time: enough for one rank per process
  multiple,    ///< every thread at any time
};

[[nodiscard]] constexpr char const* name(Threads level) noexcept {
  constexpr char const* names[] = {"MPI_THREAD_SINGLE", "MPI_THREAD_FUNNELED",
                                   "MPI_THREAD_SERIALIZED", "MPI_THREAD_MULTIPLE"};
  return names[static_cast<int>(level)];
}

namespace detail {

[[nodiscard]] inline int native(Threads level) noexcept {
  constexpr int levels[] = {MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED,
                            MPI_THREAD_MULTIPLE};
  return levels[static_cast<int>(level)];
}

/// The level with which MPI runs.
[[nodiscard]] inline Threads level() noexcept {
  int provided = MPI_THREAD_SINGLE;
  MPI_Query_thread(&provided);
  for (Threads level : {Threads::multiple, Threads::serialized, Threads::funneled})
    if (provided >= native(level)) return level;
  return Threads::single;
}

/// Whether this process has seen an error between processes, after which a peer may never reach
/// MPI_Finalize.
inline std::atomic<bool> peers_may_be_lost{false};

}  // namespace detail

/// Whether MPI can be called now.
[[nodiscard]] inline bool running() {
  int started = 0;
  int ended = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  return started != 0 && ended == 0;
}

/// Refuses an MPI that is not running, or that does not let the calling thread call it.
/// @throws Error  Errc::bad_configuration
inline void require_callable() {
  if (!running())
    raise(Errc::bad_configuration,
          "MPI is not running: keep a stagger::mpi::Session alive, or call MPI_Init_thread");
  int main_thread = 0;
  MPI_Is_thread_main(&main_thread);
  if (detail::level() < Threads::serialized && main_thread == 0)
    raise(Errc::bad_configuration, "MPI runs with ", name(detail::level()),
          ", so that only the thread that initialised it may call it; initialise it with "
          "MPI_THREAD_SERIALIZED");
}

/// Keeps MPI running for as long as this object exists.
///
/// @code
///     sg::mpi::Session const session;                                     // in main
///     if (session.process() == 0) std::printf("loss %g\n", metrics.loss);  // one process prints
/// @endcode
///
/// If the program has initialised MPI already, nothing is initialised or finalised here; only the
/// thread level is checked. Keep one Session, in main.
///
/// At its end all processes wait for each other at a barrier. After an error between ranks a peer
/// may be dead, and MPI_Finalize would wait for it for ever. So a process that has seen an error
/// waits for `farewell_s`, and does not finalise MPI if not all have arrived by then; mpirun
/// reports such a process and ends the job. A process without an error waits as long as
/// MPI_Finalize would.
class Session {
 public:
  /// @param  farewell_s  seconds to wait for the others at the end, after an error
  /// @throws Error  Errc::bad_configuration if MPI offers less than `wanted`, or has been finalised
  explicit Session(Threads wanted = Threads::serialized, double farewell_s = 2)
      : farewell_s_(farewell_s) {
    int ended = 0;
    MPI_Finalized(&ended);
    if (ended != 0)
      raise(Errc::bad_configuration,
            "MPI was finalised and cannot start again; keep one Session in main");
    if (!running()) {
      int provided = 0;
      check(MPI_Init_thread(nullptr, nullptr, detail::native(wanted), &provided),
            "MPI_Init_thread");
      owner_ = true;
    }
    if (Threads const level = detail::level(); level < wanted) {
      if (owner_) MPI_Finalize();
      raise(Errc::bad_configuration, "MPI offers ", name(level), ", but ", name(wanted),
            " is needed; initialise MPI with it, or use an MPI that was built with it");
    }
    if (!owner_) return;
    MPI_Comm_dup(MPI_COMM_WORLD, &closing_);
    MPI_Comm_set_errhandler(closing_, MPI_ERRORS_RETURN);
  }
  Session(Session const&) = delete;
  Session& operator=(Session const&) = delete;

  /// The number of this process in MPI_COMM_WORLD, from 0.
  [[nodiscard]] int process() const noexcept {
    int number = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &number);
    return number;
  }
  /// How many processes there are in MPI_COMM_WORLD.
  [[nodiscard]] int processes() const noexcept {
    int count = 1;
    MPI_Comm_size(MPI_COMM_WORLD, &count);
    return count;
  }

  ~Session() {
    if (!owner_ || !running()) return;
    if (all_came()) MPI_Finalize();
  }

 private:
  [[nodiscard]] bool all_came() const noexcept {
    MPI_Request request = MPI_REQUEST_NULL;
    if (MPI_Ibarrier(closing_, &request) != MPI_SUCCESS) return false;
    stagger::detail::Backoff waiting(std::chrono::microseconds(0), std::chrono::milliseconds(1));
    for (int done = 0;; waiting.pause()) {
      if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
      if (done != 0) return true;
      if (detail::peers_may_be_lost && waiting.waited_s() >= farewell_s_) return false;
    }
  }

  double farewell_s_;
  bool owner_ = false;  // initialised MPI, and finalises it
  MPI_Comm closing_ = MPI_COMM_NULL;
};

}  // namespace stagger::mpi
