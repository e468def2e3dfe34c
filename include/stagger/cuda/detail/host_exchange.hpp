// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The exchange of a worker on GPUs with its parameter server. The devices copy what is
///         pushed to the host, which then pushes it and waits for weights: no stream ever waits for
///         the server.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

#include <stagger/core/backoff.hpp>
#include <stagger/core/chrono.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/cuda/detail/streams.hpp>
#include <stagger/engine/backend.hpp>
#include <stagger/engine/machine.hpp>

namespace stagger::cuda::detail {

/// @param given  [cells] signals of the server
/// @throws Error  deadline
[[noreturn]] [[gnu::cold]] inline void refuse_to_wait(
    stagger::detail::Machine const& machine, FixedArray<std::atomic<std::uint32_t>> const& given) {
  Program const& program = machine.program();
  List<std::uint32_t> all(program.signals.size(), ~std::uint32_t{0});  // ranks have given theirs
  for (std::size_t c = 0; c < program.cells.size(); ++c)
    all[program.outside_signal(c)] = given[c].load();
  raise(Errc::deadline, "no rank moved for ", machine.options().deadline_s,
        " s: ", stagger::detail::describe_stall(machine, all),
        "; raise Options::deadline_s if the other workers may take that long");
}

/// Brings the times of a recorded step into order: groups were pushed before the devices had told
/// theirs.
[[gnu::cold]] inline void sort_times(stagger::detail::Machine& machine) {
  for (auto& rank : machine.ranks())
    std::sort(rank.spans.begin(), rank.spans.end(),
              [](auto const& a, auto const& b) { return a.start_s < b.start_s; });
}

/// A push of the loaded program.
struct HostPush {
  std::size_t rank;
  Instruction const* in;
  Event computed;  // what it is made of
  Event copied;    // to the host
};
/// A pull of the loaded program.
struct HostPull {
  std::size_t rank;
  Instruction const* in;
  Event computed;  // the step of its rank, but for the exchange
  bool done = false;
};

/// Pushes and pulls of the loaded program. On each GPU, their copies have a stream of their own, so
/// that they run beside computing.
class HostExchange {
 public:
  using Makes = stagger::detail::Exchange::Makes;

  explicit HostExchange(Streams& streams) : streams_(streams) {
    machine().outside({this,
                       [](void* self, std::uint32_t signal, std::uint32_t count) noexcept {
                         static_cast<HostExchange*>(self)->give(signal, count);
                       },
                       [](void* self, std::exception_ptr why) noexcept {
                         static_cast<HostExchange*>(self)->machine().fail(std::move(why));
                       }});
  }
  HostExchange(HostExchange const&) = delete;
  HostExchange& operator=(HostExchange const&) = delete;

  /// Makes the streams and events that earlier programs did not need. Called once ranks have their
  /// GPUs, before the events of streams are numbered.
  [[gnu::cold]] void load() {
    Program const& program = machine().program();
    pushes_.clear();
    pulls_.clear();
    first_.clear();
    if (!active()) return;
    if (given_.size() < program.cells.size())
      given_ = FixedArray<std::atomic<std::uint32_t>>(program.cells.size());
    for (std::size_t g = brought_.size(); g < streams_.gpus().size(); ++g) {
      streams_.gpus().select(g);
      streams_.gpus()[g].exchange = std::make_unique<Stream>(Priority::message);
      brought_.emplace_back();
    }
    for (std::size_t r = 0; r < streams_.ranks(); ++r) {
      streams_.gpus().select(streams_.gpu_of(r));
      first_.push_back(pushes_.size());
      for (Instruction const& in : program.ranks[r].code)
        if (pushes(in.op))
          pushes_.push_back({r, &in, Event(), Event()});
        else if (exchanges(in.op))
          pulls_.push_back({r, &in, Event()});
    }
    next_ = first_;  // so that a step allocates nothing
    made_.reserve(pushes_.size());
  }
  /// Whether the loaded program exchanges parameters.
  [[nodiscard]] bool active() const noexcept { return machine().program().exchanges(); }
  /// What the current step must make before it pushes.
  [[nodiscard]] Makes makes() const noexcept { return machine().exchange()->makes(); }
  /// Whether gradients are pushed, so that those of a group or rank can be copied once the last one
  /// has been computed.
  [[nodiscard]] bool begins_early() const noexcept {
    return active() && makes() == Makes::gradients;
  }

  void begin_step() {
    next_ = first_;
    made_.clear();
    pushed_ = 0;
    for (HostPull& pull : pulls_) pull.done = false;
    start_ = std::chrono::steady_clock::now();
  }

  /// A rank has come to a push, which it begins if it is that of a group, or to a pull.
  void reach(std::size_t rank, Instruction const& in) {
    if (begins_early()) make(rank, &in);
  }
  /// Enqueues what the pushes of a rank up to an instruction send, after the work that its stream
  /// has been given.
  /// @param until  null: all pushes of the rank
  void make(std::size_t rank, Instruction const* until = nullptr) {
    std::size_t const end = rank + 1 < first_.size() ? first_[rank + 1] : pushes_.size();
    for (; next_[rank] < end && (until == nullptr || pushes_[next_[rank]].in <= until);
         ++next_[rank]) {
      HostPush& push = pushes_[next_[rank]];
      Stream const& stream = follow(rank, push.computed);
      AtPlace const here(streams_.place_of(rank, stream));
      machine().exchange()->make(machine(), *push.in);
      streams_.record(stream, push.copied);
      made_.push_back(next_[rank]);
    }
  }

  /// Enqueues the end of a step, in place of its updates.
  /// @param updates  of all ranks
  /// @param decided  is set once the step can no longer fail
  template <class Updates> void end(Updates const& updates, bool& decided) {
    if (makes() == Makes::update) {
      if (!machine().commit()) return;
      decided = true;
      streams_.insist();
    }
    for (auto const& [rank, r, in] : updates) {
      streams_.use(streams_.gpu_of(r));
      AtPlace const here(streams_.place_of(r));
      machine().execute_end(*rank, *in);
    }
    for (std::size_t r = 0; r < streams_.ranks(); ++r) begins_early() ? clear(r) : make(r);
  }
  /// Enqueues that the gradients that a rank has pushed are zeros, after the work that its stream
  /// has been given.
  void clear(std::size_t rank) {
    for (HostPull& pull : pulls_) {
      if (pull.rank != rank) continue;
      Stream const& stream = follow(rank, pull.computed);
      AtPlace const here(streams_.place_of(rank, stream));
      for (std::size_t const l : machine().model.layers_of(pull.in->stage))
        machine().parameters()[l].zero_gradients();
    }
  }

  /// Pushes groups of gradients while the devices still compute the next ones.
  /// @return false: the step has failed meanwhile
  template <class InFlight> [[nodiscard]] bool push_groups(InFlight& in_flight) noexcept {
    if (machine().failed() || !machine().program().pushes_groups) return true;
    return unless_failed([&] {
      push([&](Event const& copied) {
        if (auto const failure =
                in_flight.wait([&] { return copied.done() || machine().failed(); }))
          std::rethrow_exception(failure);
      });
    });
  }
  /// Pushes the rest once the devices are done with a step, and brings them the weights of the next
  /// one. @return likewise
  template <class InFlight> [[nodiscard]] bool finish(InFlight& in_flight) noexcept {
    if (machine().failed() || !active()) return true;
    if (!unless_failed([&] {
          push([](Event const&) {});
          pull();
        }))
      return false;
    if (machine().options().record) sort_times(machine());
    if (auto failure = in_flight.wait([this] { return brought(); }))
      in_flight.lose(std::move(failure), true);
    return true;
  }

 private:
  [[nodiscard]] stagger::detail::Machine& machine() const noexcept { return streams_.machine(); }
  /// @return whether the step has not failed
  template <class Body> bool unless_failed(Body body) noexcept {
    try {
      body();
    } catch (...) {
      machine().fail(std::current_exception());
    }
    return !machine().failed();
  }

  /// Pushes what has been made and not pushed yet, each once it is on the host.
  /// @param await  (copied) waits until an event has happened or the step has failed
  template <class Await> void push(Await await) {
    for (; pushed_ < made_.size(); ++pushed_) {
      HostPush const& push = pushes_[made_[pushed_]];
      await(push.copied);
      if (machine().failed()) return;
      carry_out(push.rank, *push.in);
    }
  }
  /// Waits for the weights of the next step, and enqueues their copies to the devices.
  /// @throws Error  deadline if none has arrived for that time
  void pull() {
    for (;;) {
      bool open = false;
      bool moved = false;
      for (HostPull& pull : pulls_) {
        if (machine().failed()) return;
        if (pull.done) continue;
        open = open || !arrived(pull);
        if (!arrived(pull)) continue;
        moved = pull.done = true;
        std::size_t const g = streams_.gpu_of(pull.rank);
        streams_.use(g);
        AtPlace const here(streams_.place_of(pull.rank, *streams_.gpus()[g].exchange));
        carry_out(pull.rank, *pull.in);
      }
      if (!open) break;
      if (moved) continue;
      double const most_s = machine().options().deadline_s;
      if (stagger::detail::wait_until([this] { return machine().failed() || any_arrived(); },
                                      most_s))
        continue;
      place_ranks();
      refuse_to_wait(machine(), given_);
    }
    for (std::size_t g = 0; g < brought_.size(); ++g) {
      streams_.use(g);
      streams_.record(*streams_.gpus()[g].exchange, brought_[g]);
    }
  }
  /// Whether the devices have all of these weights.
  [[nodiscard]] bool brought() const {
    bool all = true;
    for (Event const& event : brought_) all = all && event.done();
    return all;
  }

  /// Lets the stream for the copies of a rank wait for the work that the rank's own has been given.
  [[nodiscard]] Stream const& follow(std::size_t rank, Event& computed) {
    std::size_t const g = streams_.gpu_of(rank);
    Stream const& stream = *streams_.gpus()[g].exchange;
    streams_.use(g);
    streams_.record(streams_.compute(rank), computed);
    streams_.wait(stream, computed);
    return stream;
  }
  /// A signal of the server, by any thread.
  void give(std::uint32_t signal, std::uint32_t count) noexcept {
    given_[signal - machine().program().outside_signal(0)].store(count);
  }
  [[nodiscard]] bool arrived(HostPull const& pull) const noexcept {
    return given_[pull.in->cell].load() >= machine().program().answers_for(*pull.in);
  }
  [[nodiscard]] bool any_arrived() const noexcept {
    bool any = false;
    for (HostPull const& pull : pulls_) any = any || (!pull.done && arrived(pull));
    return any;
  }
  void carry_out(std::size_t rank, Instruction const& in) {
    machine().execute_end(
        machine().ranks()[rank], in,
        {[](void* self) { return static_cast<HostExchange*>(self)->now_s(); }, this});
  }
  [[nodiscard]] double now_s() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

  /// Lets each rank stand where it waits, after everything that the devices have done.
  [[gnu::cold]] void place_ranks() noexcept {
    for (auto& rank : machine().ranks()) rank.next.store(rank.end);
    for (std::size_t p = pulls_.size(); p-- > 0;)
      if (!pulls_[p].done) machine().ranks()[pulls_[p].rank].next.store(pulls_[p].in);
  }

  Streams& streams_;
  FixedArray<std::atomic<std::uint32_t>> given_;  // [cells] at least: signals of the server
  List<Event> brought_;                           // [GPUs]
  // Of the program.
  List<HostPush> pushes_;  // rank after rank
  List<HostPull> pulls_;
  List<std::size_t> first_;  // [ranks] among the pushes
  // Of the step.
  List<std::size_t> next_;  // [ranks] push that is to be made
  List<std::size_t> made_;  // pushes, in the order in which they were enqueued
  std::size_t pushed_ = 0;  // of those
  std::chrono::steady_clock::time_point start_{};
};

}  // namespace stagger::cuda::detail
