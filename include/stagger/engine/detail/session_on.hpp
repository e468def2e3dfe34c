// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A machine on a back end: its programs, and one step at a time from begin to end.

#include <stagger/core/requirements.hpp>

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/list.hpp>
#include <stagger/core/stop_token.hpp>
#include <stagger/engine/detail/ahead.hpp>
#include <stagger/engine/detail/losses.hpp>
#include <stagger/engine/detail/programs.hpp>
#include <stagger/engine/device.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/engine/replica_run.hpp>
#include <stagger/engine/session.hpp>

namespace stagger::detail {

/// The part of a session that is the same on every back end: its machine, programs and losses.
class MachineSession : public Session {
 public:
  [[nodiscard]] Machine& machine() noexcept override { return machine_; }
  [[nodiscard]] int stages() const noexcept override { return machine_.model.table_stages(); }
  [[nodiscard]] std::int64_t steps() const noexcept override { return machine_.steps(); }
  void resume(std::int64_t steps) override { machine_.resume(steps); }
  void record(bool on) noexcept override { machine_.options().record = on; }

  std::shared_ptr<Program const> program(std::size_t microbatches, bool training) override {
    return programs_.find(microbatches, training,
                          sums_while_running_ && machine_.gradient_groups() != nullptr
                              ? machine_.gradient_groups()->groups(machine_)
                              : nullptr);
  }

  [[gnu::cold]] void choose(Request& request, BatchCounts const& counts, char const* name,
                            bool training) override {
    Hold const hold(*this);
    request.number = ++requests_;
    try {
      auto const& optimizer = machine_.model.optimizer;
      if (training && optimizer.check != nullptr) optimizer.check(optimizer.optimizer);
      request.program = program(microbatches_of(counts, name), training);
    } catch (...) {
      refused(std::current_exception());
      throw;
    }
  }

  [[gnu::cold]] void fail_between(std::exception_ptr const& why, bool again) noexcept override {
    if (machine_.exchange() == nullptr) return;
    try {
      Hold const hold(*this);
      machine_.exchange()->fail_between(why, again);
    } catch (Error const&) {  // another thread takes steps of it, for which others wait
    }
  }

 protected:
  /// @param places  for ranks
  /// @param spare   further places, for adding up gradients
  MachineSession(List<Layer> layers, Setup const& setup, DeviceTraits const& traits,
                 ParameterMemory const& memory, int positions, std::vector<int> place, int places,
                 int spare)
      : policies_(setup.kept),
        machine_(std::move(layers), setup.cuts, setup.options, setup.optimizer.states, memory,
                 traits.shards_states && setup.grouping.shard_optimizer, !traits.holds_own_stages,
                 setup.grouped),
        programs_(setup, machine_.options(), positions, machine_.model.shards_on_host(),
                  traits.holds_own_stages && setup.grouping.by == collective::By::library),
        losses_(most_replicas(setup.options.replicas)),
        sums_while_running_(traits.sums_while_running),
        starts_together_(traits.starts_together),
        place_(std::move(place)),
        places_(places),
        spare_(spare) {
    ranks_ = place_.size();
    machine_.run.grouping = setup.grouping;
    machine_.model.set_optimizer(setup.optimizer);
    machine_.model.division = setup.division;
    if (setup.grouped != nullptr) setup.grouped->require_pieces(machine_.model);
    for (auto const& part : setup.parts) part->extend(machine_, setup);
    if (!setup.parts.empty()) require_table(positions, setup);
  }
  [[gnu::cold]] [[gnu::noinline]] ~MachineSession() = default;

  /// The place of each rank. Reducers run on the spare places, in turn, or in the place of the rank
  /// whose gradients they add up.
  [[nodiscard]] [[gnu::cold]] std::vector<int> const& places_of(Program const& program) {
    place_.erase(place_.begin() + static_cast<std::ptrdiff_t>(ranks_), place_.end());
    for (std::size_t r = ranks_; r < program.ranks.size(); ++r) {
      auto const computing = static_cast<std::size_t>(program.ranks[r].reducer_for);
      int const place =
          spare_ == 0 ? place_[computing] : places_ + static_cast<int>(r - ranks_) % spare_;
      place_.push_back(place);
    }
    return place_;
  }

  std::shared_ptr<void const> policies_;   // and the loss, which steps may need after the trainer
  std::shared_ptr<Program const> loaded_;  // destroyed after the members that may use it
  Machine machine_;
  Programs programs_;
  Losses losses_;

 private:
  /// Refuses, before the first step, what policies cannot do with a table for a usual number of
  /// microbatches, such as values that replicas would have to split and cannot.
  [[gnu::cold]] void require_table(int positions, Setup const& setup) {
    schedule::Table usual;
    try {
      usual = programs_.table(2 * positions);
    } catch (Error const&) {  // the schedule needs another number: the first step says so
      return;
    }
    for (auto const& part : setup.parts) part->require_table(machine_, usual, setup);
  }

  /// The largest number of replicas of a position, which compute a loss of the same microbatch.
  static std::size_t most_replicas(Replicas const& replicas) {
    int most = 1;
    for (int const count : replicas.counts()) most = std::max(most, count);
    return static_cast<std::size_t>(most);
  }

  /// The number of microbatches. Where several processes take a step together, one of them may
  /// leave out inputs or targets that it does not read, but not outputs, which it receives.
  [[gnu::cold]] [[nodiscard]] std::size_t microbatches_of(BatchCounts const& counts,
                                                          char const* name) const {
    auto const [inputs, beside, said, outputs] = counts;
    std::size_t const given = inputs == 0 && starts_together_ ? beside : inputs;
    bool const left_out = starts_together_ && (inputs == 0 || (beside == 0 && !outputs));
    if (inputs != 0 && inputs != beside && !left_out)
      raise(Errc::bad_configuration, inputs,
            inputs == 1 ? " input needs as many " : " inputs need as many ", name, ", not ", beside,
            "; give one for each");
    if (said != 0 && given != 0 && said != given)
      raise(Errc::bad_configuration, "Batch::microbatches says ", said, ", but ", given,
            " are given; leave it out, or set it to that");
    return given == 0 && starts_together_ ? said : given;
  }

  bool sums_while_running_;
  bool starts_together_;
  std::vector<int> place_;  // [ranks, then their reducers]
  int places_;              // places for ranks
  int spare_;               // further places, for reducers
};

template <class M>
void MachineFacts<M>::append_states(M& machine, std::vector<ParameterState>& states, bool own) {
  machine.append_states(states, own);
}
template <class M> List<ParameterShape> MachineFacts<M>::shapes(M& machine) {
  if (machine.model.grouped != nullptr) return machine.model.grouped->shapes(machine.model);
  List<ParameterShape> shapes;
  for (auto const& layer : machine.parameters())
    for (std::size_t p = 0; p < layer.count(); ++p) shapes.push_back(layer.shape(p));
  return shapes;
}
template <class M> Memory MachineFacts<M>::memory(M& machine) { return machine.memory(); }
template <class M> Traffic MachineFacts<M>::traffic(M& machine, int ranks) {
  Traffic total = machine.traffic.total();
  return total.ranks() != 0 ? total : Traffic(static_cast<std::size_t>(ranks));  // no step yet
}
template <class M>
std::vector<std::uint64_t> MachineFacts<M>::staleness(M& machine, std::optional<int> worker) {
  if (machine.exchange() == nullptr) return {};
  auto const counts = machine.exchange()->staleness(worker);
  return {counts.begin(), counts.end()};
}
/// Refuses a question about a step that was not recorded.
[[gnu::cold]] inline void require_recorded(Machine const& machine) {
  bool recorded = false;
  for (auto const& rank : machine.ranks()) recorded = recorded || rank.recorded;
  if (!recorded)
    raise(Errc::bad_configuration, "the last step was not recorded; ",
          machine.options().record
              ? "steps are recorded from now on, so take one first"
              : "give with() Options{.record = true}, or call record(true) before a step");
}
template <class M> schedule::Timeline MachineFacts<M>::timeline(M& machine, int ranks, bool sums) {
  require_recorded(machine);
  schedule::Timeline timeline;
  int const all = static_cast<int>(machine.ranks().size());
  for (int r = sums ? ranks : 0; r < (sums ? all : std::min(all, ranks)); ++r) {
    auto const& spans = machine.ranks()[r].spans;
    if (auto const* const grouped = machine.model.grouped; grouped != nullptr)
      grouped->add_row(spans, timeline);
    else
      timeline.add_row({spans.begin(), spans.end()});
  }
  return timeline;
}
template <class M> std::vector<int> MachineFacts<M>::peak_in_flight(M& machine, int ranks) {
  require_recorded(machine);
  std::vector<int> peak;
  for (int r = 0; r < std::min(static_cast<int>(machine.ranks().size()), ranks); ++r)
    peak.push_back(machine.ranks()[r].peak_in_flight);
  return peak;
}

template <class M> std::string MachineFacts<M>::failed_at(M& machine) {
  return machine.run.failed_at;
}

/// Prepares the losses of a step. A back end of several processes compares what they are given, and
/// adds what this one is not.
template <class B>
void begin_losses(Losses& losses, B& backend, StepArguments& arguments, Program const& program,
                  std::size_t slot) {
  losses.begin(arguments, program, slot);
  if constexpr (requires { backend.complete(arguments, losses.terms()); })
    backend.complete(arguments, losses.terms());
  losses.weigh(program);
}

/// The part of a session that depends on the back end.
template <class Device> class SessionOn final : public MachineSession {
  using B = typename Device::Backend;
  static constexpr DeviceTraits traits = Device::traits;

 public:
  /// @param places, spare  for ranks; further ones, for adding up gradients
  [[gnu::cold]] SessionOn(Device const& device, List<Layer> layers, Setup const& setup,
                          int positions, std::vector<int> place, int places, int spare)
      : MachineSession(std::move(layers), setup, traits, memory_of(device), positions,
                       std::move(place), places, spare),
        backend_(device, machine_, places + spare) {}

  SessionOn(SessionOn const&) = delete;
  SessionOn& operator=(SessionOn const&) = delete;
  [[gnu::cold]] ~SessionOn() { machine_.remove_parts(); }  // an exchange calls the back end

  [[nodiscard]] B& backend() noexcept { return backend_; }
  void settle_parameters() override {
    settle(nullptr);
    take_late();
  }
  [[gnu::cold]] Visited visit_parameters(int to,
                                         [[maybe_unused]] ParameterVisit const& visit) override {
    settle_parameters();
    if constexpr (traits.holds_own_stages)
      return backend_.visit_parameters(to, visit) ? Visited::here : Visited::elsewhere;
    gather_parameters(to);
    return Visited::not_spread;
  }
  void gather_parameters([[maybe_unused]] int to) override {
    settle_parameters();
    if constexpr (traits.gathers_parameters) backend_.gather_parameters(to);
  }
  [[gnu::cold]] void load(std::shared_ptr<Program const> wanted) {
    if (loaded_ == wanted && !must_load()) return;
    settle(nullptr);
    loaded_ = nullptr;
    Program const& program = *wanted;
    machine_.load(program);
    backend_.load(places_of(program));
    std::size_t slots = 1;
    if constexpr (runs_ahead) slots = ahead_.slots();
    losses_.make_room(program, slots);
    loaded_ = std::move(wanted);
  }

  [[gnu::cold]] void begin(Request const& request, stagger::stop_token stop) override {
    take(Use::step);
    if (machine_.exchange() != nullptr) machine_.exchange()->comes();
    try {
      together(request.number, [&] {
        settle(nullptr);
        if (!request.program->training) take_late();
        prepare(request, std::move(stop), 0);
      });
      if constexpr (traits.shares_time) backend_.begin();
    } catch (...) {
      leave();
      throw;
    }
  }

  [[gnu::cold]] void make_ready(std::size_t microbatches) override {
    take(Use::step);
    Release const release{this};
    together(
        ++requests_,
        [&] {
          if constexpr (tells_others) loaded_ = nullptr;  // other processes may have loaded another
          load(program(microbatches, true));
        },
        true);
  }

  TicketPlace* enqueue(Request const& request, stagger::stop_token stop,
                       Metrics& metrics) override {
    if constexpr (runs_ahead)
      if (!request.program->updates_early() && backend_.runs_ahead()) {
        take(Use::step);
        Release const release{this};
        load(request.program);
        ahead_.make_room(backend_);
        ahead_.rethrow_unreported();
        backend_.require_present();
        std::size_t const slot = ahead_.slot();
        prepare(request, std::move(stop), slot);
        backend_.enqueue(slot);
        machine_.end_step();
        return &ahead_.add(losses_.facts(), losses_.values(), machine_.steps(), request.kept);
      }
    return StepOwner::enqueue(request, std::move(stop), metrics);
  }

  void settle([[maybe_unused]] TicketPlace const* last) override {
    if constexpr (runs_ahead) {
      ahead_.settle(backend_, last);
      if (last != nullptr) return;
      ahead_.rethrow_unreported();
      backend_.require_present();
    }
  }
  void poll() override {
    if constexpr (runs_ahead) ahead_.poll(backend_);
  }
  void untold(std::exception_ptr why) noexcept override { ahead_.untold(std::move(why)); }

  void drive() override {
    try {
      backend_.drive();
    } catch (...) {  // it could not begin: no thread or no memory
      backend_.fail(std::current_exception());
    }
    stop_.reset();
  }

  [[nodiscard]] bool shares_time() const noexcept override { return traits.shares_time; }
  bool drive_together() override {
    if constexpr (traits.shares_time) {
      bool const ended = backend_.drive_together();
      if (ended) stop_.reset();
      return ended;
    } else {
      return StepOwner::drive_together();
    }
  }

  [[gnu::cold]] bool start(std::coroutine_handle<> then) override {
    try {
      return backend_.start(then);
    } catch (...) {
      stop_.reset();
      leave();
      throw;
    }
  }

  [[gnu::cold]] void abandon(bool started) override {
    Cancel{this}();
    if (!started)
      drive();
    else if constexpr (requires { backend_.withdraw(); })
      backend_.withdraw();
    static_cast<void>(end());
  }

  [[gnu::cold]] Metrics end() override {
    stop_.reset();
    Release const release{this};
    machine_.end_step();
    return metrics_of(losses_.facts(), losses_.values(), machine_.gradient_norm(),
                      machine_.skipped());
  }

 protected:
  void refused([[maybe_unused]] std::exception_ptr const& why) noexcept override {
    if constexpr (tells_others) {
      backend_.open(requests_);
      backend_.give_up(why);
    }
  }

 private:
  static constexpr bool tells_others = traits.starts_together;
  static constexpr bool runs_ahead = traits.runs_ahead;

  /// Lets other threads take steps again.
  struct Release {
    SessionOn* session;
    ~Release() {
      session->stop_.reset();
      session->leave();
    }
  };

  struct Cancel {
    SessionOn* session;
    void operator()() const noexcept {
      session->backend_.fail(raised(Errc::cancelled,
                                    "the step was cancelled; parameters are those after step ",
                                    session->machine_.steps()));
    }
  };

  /// Whether the back end needs the program once more.
  [[nodiscard]] bool must_load() const noexcept {
    if constexpr (tells_others) return backend_.must_load();
    return false;
  }

  /// Calls `begin`, which all processes call together; if it throws, the other processes are told.
  /// @param number, prepares  of the request, alike in all processes; whether no step follows
  template <class Begin>
  void together([[maybe_unused]] std::uint32_t number, Begin begin, bool prepares = false) {
    if constexpr (tells_others) {
      if (number != requests_)
        raise(Errc::bad_configuration,
              "this step was asked for before another one; over processes take each step before "
              "you ask for the next");
      backend_.open(number, prepares);
      try {
        begin();
      } catch (...) {
        backend_.give_up(std::current_exception());
        throw;
      }
    } else {
      begin();
    }
  }

  /// Waits for late weights of a parameter server, by a program that does nothing else; one of
  /// several processes, which would have to load that program together, waits for its own.
  [[gnu::cold]] void take_late() {
    if constexpr (traits.outside_signals) {
      if (machine_.exchange() == nullptr || loaded_ == nullptr) return;
      if constexpr (traits.starts_together) return machine_.exchange()->await_late_answers();
      auto const answers = machine_.exchange()->late_answers(*loaded_);
      if (answers == nullptr) return;
      load(answers);
      try {
        machine_.begin_step({});
        if constexpr (traits.shares_time) backend_.begin();
        drive();
        machine_.end_step();
      } catch (Error const& error) {
        if (error.code() != Errc::peer_failed) throw;  // otherwise the weights are now the server's
      }
    }
  }

  /// The part of `begin` that depends on the step.
  [[gnu::cold]] void prepare(Request const& request, stagger::stop_token stop, std::size_t slot) {
    load(request.program);
    StepArguments arguments = request.arguments;
    begin_losses(losses_, backend_, arguments, *request.program, slot);
    machine_.begin_step(arguments);
    if (stop.stop_possible()) stop_.emplace(std::move(stop), Cancel{this});
  }

  /// The memory in which the device keeps parameters.
  static ParameterMemory memory_of([[maybe_unused]] Device const& device) {
    if constexpr (traits.parameter_memory) return device.parameter_memory();
    return {};
  }

  B backend_;
  [[no_unique_address]] std::conditional_t<runs_ahead, Ahead<B>, NotAhead> ahead_{backend_};
  std::optional<stagger::stop_callback<Cancel>> stop_;
};

}  // namespace stagger::detail
