// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The clients of a parameter server: of each worker one process, or several that run its
///         stages.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>

#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/parameters/parameter_link.hpp>
#include <stagger/parameters/version_tag.hpp>

namespace stagger::collective::detail {

/// Weights of a layer that are waited for.
struct Ask {
  static constexpr std::uint32_t everything = stagger::detail::all_rounds;  ///< the last snapshot
  static constexpr std::uint32_t nothing = everything - 1;
  std::uint32_t rounds = nothing;
  bool urgent = false;  ///< the late part of the last round may be missing
};

/// A process of a worker, whether it has joined or not.
struct Client {
  stagger::detail::ParameterListener* listener = nullptr;  ///< null: it has not joined
  int processes = 1;                                       ///< processes that its worker runs in
  bool came = false;                                       ///< it has joined, and may have left
  bool begins = false;               ///< it will be in a stream once it reads a layer
  std::uint32_t failures = 0;        ///< failures after which its last stream began
  std::atomic<bool> active{false};   ///< in a stream
  std::atomic<bool> awaited{false};  ///< expected to go on with its stream
  std::atomic<bool> returns{false};  ///< it has left before, and waits until it can come back
  bool timed = false;                ///< in virtual time, where it cannot wait for that
  List<Ask> asks;                    ///< [layers]
  std::exception_ptr undone{};       ///< told if a step that was undone has ended its stream

  /// Notes a request. It does not replace one for more rounds.
  void ask(std::size_t layer, Ask const& what) noexcept {
    if (asks[layer].rounds == Ask::nothing || what.rounds >= asks[layer].rounds) asks[layer] = what;
  }
};

constexpr int unknown_worker = -1;

/// The error for the other workers.
/// @param worker  the failed worker, or unknown_worker
/// @param pushes  how many it had made
[[nodiscard]] [[gnu::cold]] inline std::exception_ptr failure_of(int worker,
                                                                 std::uint32_t pushes) noexcept {
  constexpr char const* next =
      ", which ends the streams of the others; begin the next one, which goes on from the server's "
      "weights";
  if (worker == unknown_worker) return raised(Errc::peer_failed, "another worker has failed", next);
  return raised(Errc::peer_failed, "worker ", worker, " has failed after ", counted(pushes, "push"),
                next);
}

/// The error for all whose pushes were in a step of the server that was undone.
[[nodiscard]] [[gnu::cold]] inline std::exception_ptr overflow_of(std::size_t layer) noexcept {
  return raised(Errc::not_finite, "the pushes of this step make a number of layer ", layer,
                " at the parameter server that is not finite, so that layer was left as it was: "
                "lower the rate; the next step goes on from the server's weights");
}

/// The number of failures after which a worker's stream begins. One far beyond those that this part
/// of a server has heard of is refused, since each of them would happen here, one after the other.
/// @param failures  as the worker says, or any_failures
[[nodiscard]] inline std::uint32_t possible_failures(int worker, std::uint32_t failures,
                                                     std::uint32_t heard) {
  constexpr std::uint32_t most_missed = 1000;
  if (failures == stagger::detail::any_failures) return heard;
  if (failures > heard && failures - heard > most_missed)
    raise(Errc::bad_data, "worker ", worker, " says that ", failures,
          " of its streams have failed, where the server has heard of ", heard,
          "; run the same version of the program at both ends");
  return failures;
}

class Clients {
 public:
  /// @param processes  most processes in which a worker may run
  Clients(int workers, int processes) : workers_(workers), clients_(workers * processes) {}

  [[nodiscard]] std::size_t workers() const noexcept { return static_cast<std::size_t>(workers_); }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(clients_.size()); }
  [[nodiscard]] Client& operator[](int client) noexcept { return clients_[client]; }
  [[nodiscard]] Client const& operator[](int client) const noexcept { return clients_[client]; }
  [[nodiscard]] int worker_of(int client) const noexcept { return client % workers_; }
  /// The number of the process among those of its worker.
  [[nodiscard]] int process_of(int client) const noexcept { return client / workers_; }

  /// @throws Error  bad_configuration for numbers that the server was not made for
  [[gnu::cold]] void require_worker(int number, int process = 0) const {
    if (number < 0 || number >= workers_)
      raise(Errc::bad_configuration, "there is no worker ", number,
            "; the server was made for workers 0 to ", workers_ - 1);
    if (process < 0 || process >= size() / workers_)
      raise(Errc::bad_configuration, "worker ", number, " joins as process ", process,
            " of its own, where a worker runs in ", size() / workers_,
            " at most; give each process the number that it has in its worker");
  }
  /// @throws Error  peer_failed if the client's stream has been ended
  void require_active(int client) const {
    if (!clients_[client].active.load())
      raise(Errc::peer_failed, "another worker has failed, which ends the stream of worker ",
            worker_of(client), "; begin the next one, which goes on from the server's weights");
    if (clients_[client].returns.load())
      raise(Errc::bad_data, "worker ", worker_of(client),
            " pushes or asks before the step in which it comes back; run the same version of the "
            "program at both ends");
  }
  /// A client in virtual time cannot wait to come back.
  /// @throws Error  bad_configuration, and its stream has not begun
  void require_timely(int client, bool goes_on, bool late) {
    Client& own = clients_[client];
    if (!own.timed || !own.returns.load()) return;
    own.active.store(false);
    own.returns.store(!goes_on);  // otherwise it has joined, and is waited for
    raise(Errc::bad_configuration, "worker ", worker_of(client), " comes back while others ",
          late ? "are in a step or their late layers under way" : "end their streams",
          ", which it cannot wait for in virtual time; let it begin when they have ended",
          late ? ", and look at their parameters() first" : "");
  }
  /// Processes of a worker that have joined.
  [[nodiscard]] int present(int worker) const {
    int count = 0;
    for (int n = worker; n < size(); n += workers_)
      if (clients_[n].listener != nullptr) ++count;
    return count;
  }
  [[nodiscard]] bool any_active() const {
    bool any = false;
    for (Client const& each : clients_) any = any || each.active.load();
    return any;
  }
  /// Whether a process of the worker is in a stream.
  [[nodiscard]] bool active(int worker) const {
    bool any = false;
    for (int n = worker; n < size(); n += workers_) any = any || clients_[n].active.load();
    return any;
  }
  /// A worker for which others wait, as text.
  /// @param process  of the worker, which runs the layer that they wait for
  /// @param made     pushes that it has made
  [[nodiscard]] [[gnu::cold]] std::string words_for(int worker, int process,
                                                    std::uint32_t made) const {
    Client const& its = clients_[worker + process * workers_];
    if (its.listener != nullptr)
      return text("worker ", worker, ", which has made ", counted(made, "push"));
    return text("worker ", worker, its.came ? ", which has left" : ", which has not joined");
  }
  /// Whether a client that should go on with its stream has not joined again yet.
  [[nodiscard]] bool any_awaited() const noexcept {
    bool any = false;
    for (Client const& each : clients_) any = any || each.awaited.load();
    return any;
  }
  /// Takes the processes of one worker, or of all, out of their streams.
  /// @return  [clients] whether it was in one
  [[nodiscard]] List<bool> stop(int worker, bool all) {
    List<bool> were(clients_.size());
    for (int n = 0; n < size(); ++n) {
      if (!all && worker_of(n) != worker) continue;
      were[n] = clients_[n].active.exchange(false);
      if (!all) clients_[n].returns.store(false);  // otherwise it has joined, and is waited for
    }
    return were;
  }
  /// Whether a worker has failed since the client's stream began with another part of the server,
  /// which the client is then told.
  /// @param failures  of which this part has heard
  [[nodiscard]] bool lost_before(int client, std::uint32_t failures) noexcept {
    if (failures == clients_[client].failures) return false;
    clients_[client].listener->lost(failure_of(unknown_worker, 0));
    return true;
  }
  /// Why a client's stream has ended to which it comes back over another connection.
  [[nodiscard]] [[gnu::cold]] std::exception_ptr why_ended(int client) const {
    if (clients_[client].undone) return clients_[client].undone;
    return raised(Errc::peer_failed,
                  "the stream has ended while the worker had no connection; begin the next one, "
                  "which goes on from the server's weights");
  }
  /// Notifies workers of the weights of a layer that they have asked for and that are ready, unless
  /// the streams of some are about to end.
  /// @param layer  the ParameterStore of layer l, whose lock is held
  template <class Store> void answer(std::size_t l, Store const& layer) {
    for (int n = 0; n < size() && !layer.workers().undone(); ++n) {
      Client& each = clients_[n];
      if (!each.active.load() || each.asks[l].rounds == Ask::nothing) continue;
      auto const [asked, urgent] = each.asks[l];
      if (asked == Ask::everything
              ? layer.in_stream(worker_of(n))
              : !layer.ready(worker_of(n), layer.start(worker_of(n)) + asked, urgent))
        continue;
      each.asks[l] = {};
      each.listener->arrived(l, asked);
    }
  }
  struct Attendance {
    int missing = -1;  ///< a worker that has never joined; -1: all have
    int present = 0;   ///< processes that have joined and not left
  };
  [[nodiscard]] Attendance attendance() const {
    Attendance all;
    for (int worker = workers_ - 1; worker >= 0; --worker) {
      bool came = false;
      for (int n = worker; n < size(); n += workers_) came = came || clients_[n].came;
      if (!came) all.missing = worker;
      all.present += present(worker);
    }
    return all;
  }
  /// The number of the client that joins.
  /// @throws Error  bad_configuration if all processes of the worker have joined, or if it joined
  ///                before with another number of processes
  [[nodiscard]] int number_for(int worker, stagger::detail::WorkerRules const& rules) const {
    require_worker(worker, rules.process);
    int const client = worker + rules.process * workers_;
    bool free = clients_[client].listener == nullptr && present(worker) < rules.processes;
    for (int n = worker; n < size(); n += workers_)
      if (clients_[n].listener != nullptr) free = free && clients_[n].processes == rules.processes;
    if (!free)
      raise(Errc::bad_configuration, "worker ", worker,
            " trains already; give each pipeline a worker of its own");
    return client;
  }

 private:
  int workers_;
  FixedArray<Client> clients_;  // [processes][workers]
};

}  // namespace stagger::collective::detail
