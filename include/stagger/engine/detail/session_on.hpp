// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A machine on a back end: its programs, and one step at a time from begin to end.

#include <stagger/core/requirements.hpp>

#include <algorithm>
#include <atomic>
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

#include <stagger/core/error.hpp>
#include <stagger/core/list.hpp>
#include <stagger/core/stop_token.hpp>
#include <stagger/engine/detail/ahead.hpp>
#include <stagger/engine/device.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/engine/replica_ops.hpp>
#include <stagger/engine/session.hpp>
#include <stagger/program/check_program.hpp>
#include <stagger/program/lay_out.hpp>

namespace stagger::detail {

/// The same table without its backward actions.
[[nodiscard]] [[gnu::cold]] inline schedule::Table forward_only(schedule::Table const& table) {
  schedule::Table result;
  result.stages = table.stages;
  result.microbatches = table.microbatches;
  result.slices = table.slices;
  for (int r = 0; r < table.ranks(); ++r) {
    result.begin_row();
    for (auto const& action : table.row(r))
      if (action.kind == schedule::Kind::forward)
        result.add({action.kind, action.stage, action.microbatch, action.slice});
  }
  return result;
}

template <class Device> class SessionOn final : public Session {
  using B = typename Device::Backend;
  static constexpr DeviceTraits traits = Device::traits;

 public:
  /// @param places  for ranks
  /// @param spare   further places, for adding up gradients
  SessionOn(Device const& device, List<Layer> layers, Setup const& setup, int positions,
            std::vector<int> place, int places, int spare)
      : policies_(setup.kept),
        schedule_(setup.schedule),
        staleness_(setup.staleness),
        place_(std::move(place)),
        places_(places),
        spare_(spare),
        machine_(std::move(layers), setup.cuts, setup.options, setup.optimizer.states,
                 memory_of(device), shards(setup), !traits.holds_own_stages),
        backend_(device, with_policies(setup), places + spare) {
    positions_ = positions;
    ranks_ = place_.size();
    if (!setup.options.replicas.empty()) require_rows(setup.target_rows);
  }

  [[nodiscard]] B& backend() noexcept { return backend_; }
  [[nodiscard]] Machine& machine() noexcept override { return machine_; }
  [[nodiscard]] int stages() const noexcept override { return machine_.stages(); }
  [[nodiscard]] std::int64_t steps() const noexcept override { return machine_.steps(); }
  void resume(std::int64_t steps) noexcept override { machine_.resume(steps); }
  void record(bool on) noexcept override { machine_.options().record = on; }
  void append_states(std::vector<ParameterState>& states, bool own) override {
    settle(nullptr);
    machine_.append_states(states, own);
  }
  void append_shapes(List<ParameterShape>& shapes) override {
    for (auto const& layer : machine_.parameters())
      for (std::size_t p = 0; p < layer.count(); ++p) shapes.push_back(layer.shape(p));
  }
  [[gnu::cold]] bool visit_parameters(int to, ParameterVisit const& visit) override {
    if constexpr (traits.holds_own_stages) {
      return backend_.visit_parameters(to, visit);
    } else {
      gather_parameters(to);
      std::vector<ParameterState> states;
      append_states(states, false);
      for (auto const& state : states) visit.call(visit.self, state);
      return true;
    }
  }
  void gather_parameters([[maybe_unused]] int to) override {
    settle(nullptr);
    if constexpr (traits.gathers_parameters) backend_.gather_parameters(to);
  }
  [[nodiscard]] Memory memory() const override { return machine_.memory(); }

  [[nodiscard]] schedule::Timeline timeline(bool sums) const override {
    schedule::Timeline timeline;
    auto const& all = machine_.ranks();
    for (std::size_t r = sums ? ranks_ : 0; r < (sums ? all.size() : computing()); ++r)
      timeline.rows.push_back(all[r].spans);
    return timeline;
  }
  [[nodiscard]] std::vector<int> peak_in_flight() const override {
    std::vector<int> peak;
    for (std::size_t r = 0; r < computing(); ++r)
      peak.push_back(machine_.ranks()[r].peak_in_flight);
    return peak;
  }

  std::shared_ptr<Program const> program(std::size_t microbatches, bool training) override {
    require_microbatches(microbatches);
    if (training && staleness_ && machine_.options().clip_norm)
      raise(
          Errc::bad_configuration,
          "gradients cannot be clipped by a norm over all stages where stages update alone; leave "
          "clip_norm out, or use staleness::Synchronous");
    List<GradientGroup> const* const groups = this->groups();
    for (auto& known : programs_)
      if (known.program->training == training &&
          known.program->microbatches == static_cast<int>(microbatches) &&
          (groups == nullptr || !training || known.program->groups == *groups)) {
        known.asked = ++asked_;
        return known.program;
      }
    return add_program(static_cast<int>(microbatches), training, groups);
  }

  [[gnu::cold]] void load(std::shared_ptr<Program const> wanted) {
    if (loaded_ == wanted && !must_load()) return;
    settle(nullptr);
    loaded_ = nullptr;
    Program const& program = *wanted;
    machine_.load(program);
    while (place_.size() > ranks_) place_.pop_back();
    for (std::size_t r = ranks_; r < program.ranks.size(); ++r) {
      int const beside = place_[static_cast<std::size_t>(program.ranks[r].beside)];
      place_.push_back(spare_ == 0 ? beside : places_ + static_cast<int>(r - ranks_) % spare_);
    }
    backend_.load(place_);
    std::size_t const losses = static_cast<std::size_t>(program.microbatches) * parts();
    std::size_t turns = 1;
    if constexpr (runs_ahead) turns = ahead_.turns();
    losses_.resize(std::max(losses_.size(), turns * losses));
    scales_.resize(std::max(scales_.size(), losses));
    loaded_ = std::move(wanted);
  }

  void require_idle() const override {
    if (busy_.load(std::memory_order_acquire)) refuse();
  }

  [[gnu::cold]] void begin(Request const& request, stagger::stop_token stop) override {
    if (busy_.exchange(true)) refuse();
    try {
      together(request.number, [&] {
        settle(nullptr);
        prepare(request, std::move(stop), 0);
      });
    } catch (...) {
      busy_.store(false);
      throw;
    }
  }

  [[gnu::cold]] void make_ready(std::size_t microbatches) override {
    if (busy_.exchange(true)) refuse();
    Release const release{this};
    together(
        ++requests_,
        [&] {
          if constexpr (tells_others) loaded_ = nullptr;  // the others may have another
          load(program(microbatches, true));
        },
        true);
  }

  TicketPlace* enqueue(Request const& request, stagger::stop_token stop,
                       Metrics& metrics) override {
    if constexpr (runs_ahead)
      if (request.program->flushes && backend_.runs_ahead()) {
        if (busy_.exchange(true)) refuse();
        Release const release{this};
        load(request.program);
        ahead_.make_room(backend_);
        ahead_.rethrow_unreported();
        backend_.require_present();
        std::size_t const turn = ahead_.turn();
        prepare(request, std::move(stop), turn);
        backend_.enqueue(turn);
        machine_.end_step();
        return &ahead_.add(facts(), losses_of(turn), machine_.steps());
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
  void look() override {
    if constexpr (runs_ahead) ahead_.look(backend_);
  }

  void drive() override {
    try {
      backend_.drive();
    } catch (...) {  // it could not even begin: no thread, no memory
      backend_.fail(std::current_exception());
    }
    stop_.reset();
  }

  bool start(std::coroutine_handle<> then) override {
    try {
      return backend_.start(then);
    } catch (...) {
      stop_.reset();
      busy_.store(false);
      throw;
    }
  }

  [[gnu::cold]] Metrics end() override {
    stop_.reset();
    Release const release{this};
    machine_.end_step();
    return metrics_of(facts(), losses_.data(), machine_.gradient_norm());
  }

 protected:
  void refused([[maybe_unused]] std::exception_ptr const& why) noexcept override {
    if constexpr (tells_others) {
      if (busy_.exchange(true)) return;  // another step runs
      backend_.open(requests_);
      backend_.give_up(why);
      busy_.store(false);
    }
  }

 private:
  static constexpr bool tells_others = traits.starts_together;
  static constexpr bool runs_ahead = traits.runs_ahead;

  /// Ends what only the thread that takes a step may do.
  struct Release {
    SessionOn* session;
    ~Release() {
      session->stop_.reset();
      session->busy_.store(false, std::memory_order_release);
    }
  };

  struct Cancel {
    SessionOn* session;
    void operator()() const noexcept {
      session->backend_.fail(std::make_exception_ptr(
          Error(Errc::cancelled, text("the step was cancelled; parameters are those after step ",
                                      session->machine_.steps()))));
    }
  };

  [[nodiscard]] Machine& with_policies(Setup const& setup) noexcept {
    machine_.set_grouping(setup.grouping);
    machine_.set_optimizer(setup.optimizer);
    return machine_;
  }

  /// Whether the back end needs the program once more.
  [[nodiscard]] bool must_load() const noexcept {
    if constexpr (tells_others) return backend_.must_load();
    return false;
  }

  /// Carries out what all processes begin together; the others are told if it throws here.
  /// @param number    as others count it; one that they may have gone past pairs different steps
  /// @param prepares  whether no step follows
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

  /// The part of `begin` that depends on the step.
  [[gnu::cold]] void prepare(Request const& request, stagger::stop_token stop, std::size_t turn) {
    request_ = request;
    load(request_.program);
    StepArguments arguments = request_.arguments;
    arguments.losses = arguments.targets.first != nullptr ? losses_of(turn) : nullptr;
    weigh(arguments);
    if (parts() > 1) std::fill_n(losses_of(turn), facts().microbatches * parts(), 0.0);
    machine_.begin_step(arguments);
    if (stop.stop_possible()) stop_.emplace(std::move(stop), Cancel{this});
  }

  [[nodiscard]] StepFacts facts() const noexcept {
    return {terms_, static_cast<std::size_t>(request_.program->microbatches), parts(),
            request_.arguments.targets.first != nullptr};
  }
  [[nodiscard]] double* losses_of(std::size_t turn) noexcept {
    return losses_.data() +
           turn * static_cast<std::size_t>(request_.program->microbatches) * parts();
  }

  [[nodiscard]] auto make_ahead() {
    if constexpr (runs_ahead)
      return Ahead<B>(backend_.turns());
    else
      return NotAhead{};
  }

  /// Where the device policy wants parameters to lie.
  static ParameterMemory memory_of([[maybe_unused]] Device const& device) {
    if constexpr (traits.parameter_memory)
      return device.parameter_memory();
    else
      return {};
  }

  /// Whether each rank has the optimizer's state of what it updates alone.
  static bool shards(Setup const& setup) {
    return traits.shards_states && setup.grouping.shard_optimizer &&
           !setup.options.replicas.empty();
  }

  void require_microbatches(std::size_t count) const {
    if (count == 0)
      raise(Errc::bad_configuration,
            "a minibatch of 0 microbatches cannot be run; give at least 1");
    auto const slices = static_cast<std::size_t>(schedule_.slices);
    if (count % slices != 0)
      raise(Errc::bad_configuration, counted(count, "input"), " cannot be microbatches of ",
            counted(slices, "slice"), " each; give a multiple of ", slices);
  }

  [[nodiscard]] schedule::Table table(int microbatches) const {
    return schedule_.table(
        schedule_.schedule,
        Shape{.ranks = positions_, .microbatches = microbatches, .chunks = schedule_.chunks});
  }

  /// The part of `program` that happens once.
  [[gnu::cold]] std::shared_ptr<Program const> add_program(int microbatches, bool training,
                                                           List<GradientGroup> const* groups) {
    schedule::Table made = table(microbatches / schedule_.slices);
    if (!training) made = forward_only(made);
    if (made.stages != machine_.stages() || made.ranks() != positions_ ||
        made.microbatches * made.slices != microbatches)
      raise(Errc::bad_schedule, "the schedule made a table of ", counted(made.ranks(), "rank"),
            ", ", counted(made.stages, "stage"), " and ",
            counted(made.microbatches * made.slices, "microbatch"), " where ", positions_, ", ",
            machine_.stages(), " and ", microbatches, " were asked for");
    if (training && std::all_of(made.actions.begin(), made.actions.end(), [](auto const& action) {
          return action.kind == schedule::Kind::forward;
        }))
      raise(Errc::bad_schedule,
            "the schedule made a table without a backward action, which cannot train; evaluate and "
            "predict with it, or train with a schedule such as 1f1b");
    LayOutOptions options;
    options.recompute = machine_.options().recompute;
    options.spare_slots = machine_.options().spare_slots;
    options.staleness = staleness_;
    options.replicas = &machine_.options().replicas;
    options.groups = groups;
    if (groups != nullptr)
      options.group_gradients = machine_.options().replicas.ops()->group_gradients;
    options.chain_squares = machine_.shards() && machine_.options().clip_norm.has_value();
    options.sums_by_library =
        traits.holds_own_stages && machine_.grouping().by == collective::By::library;
    auto const added = std::make_shared<Program const>(lay_out(made, options));
    require_sound(*added, made, options);
    programs_.push_back({added, ++asked_});
    if (training && groups != nullptr) drop_old_groupings(*added);
    return added;
  }

  /// Groupings that are measured come back at every renewal, one that was decided need not: of
  /// programs that differ in nothing else, only those stay that were asked for last.
  [[gnu::cold]] void drop_old_groupings(Program const& added) {
    constexpr std::size_t kept = 3;  // each layer by itself, a whole stage at once, the decision
    std::size_t alike = 0;
    auto oldest = programs_.end();
    for (auto known = programs_.begin(); known != programs_.end(); ++known) {
      if (!known->program->training || known->program->microbatches != added.microbatches) continue;
      ++alike;
      if (oldest == programs_.end() || known->asked < oldest->asked) oldest = known;
    }
    if (alike > kept) programs_.erase(oldest);
  }

  /// Refuses, at once where the schedule shows it for a usual number of microbatches, values that
  /// replicas would have to cut and cannot.
  [[gnu::cold]] void require_rows(bool target_rows) {
    schedule::Table usual;
    try {
      usual = table(2 * positions_);
    } catch (Error const&) {  // of another number, then: the first step tells
      return;
    }
    machine_.options().replicas.ops()->require_rows(machine_, usual, target_rows);
  }

  /// What is added up while backward runs; null: nothing.
  [[nodiscard]] List<GradientGroup> const* groups() {
    return traits.sums_while_running ? machine_.groups() : nullptr;
  }

  /// Ranks of the loaded program that compute.
  [[nodiscard]] std::size_t computing() const noexcept {
    return std::min(machine_.ranks().size(), ranks_);
  }

  /// How many may compute a loss of one microbatch: the most replicas of a position.
  [[nodiscard]] std::size_t parts() const noexcept {
    std::size_t most = 1;
    for (int const count : machine_.options().replicas.counts())
      most = std::max(most, static_cast<std::size_t>(count));
    return most;
  }

  /// Every term of a minibatch counts alike, however unequal its microbatches are.
  void weigh(StepArguments& arguments) {
    terms_ = 0;
    if (arguments.targets.first == nullptr) return;
    auto const& program = *request_.program;
    auto const microbatches = static_cast<std::size_t>(program.microbatches);
    auto const minibatches = static_cast<std::size_t>(program.updates);
    for (std::size_t begin = 0, k = 0; k < minibatches; ++k) {
      std::size_t const end = begin + microbatches / minibatches;
      double terms = 0;
      for (std::size_t m = begin; m < end; ++m)
        terms += arguments.loss_ops.terms(arguments.loss, arguments.targets[m]);
      for (; begin < end; ++begin) scales_[begin] = terms > 0 ? 1 / terms : 0;
      terms_ += terms;
    }
    arguments.scales = scales_.data();
  }

  [[noreturn]] [[gnu::cold]] static void refuse() {
    raise(Errc::bad_configuration,
          "a step of this pipeline is still running; take one step after the other, or "
          "make a pipeline for each thread");
  }

  std::shared_ptr<void const> policies_;  // and the loss, which steps need and trainers may drop
  ScheduleCall schedule_;
  StalenessModel staleness_;
  std::vector<int> place_;  // [ranks, then those that add up gradients beside them]
  int places_;              // for them
  int spare_;               // further places, for the others
  struct Known {
    std::shared_ptr<Program const> program;
    std::uint64_t asked = 0;
  };
  std::vector<Known> programs_;
  std::uint64_t asked_ = 0;                // how often programs were asked for
  std::shared_ptr<Program const> loaded_;  // before what may be at it when it goes
  Machine machine_;
  B backend_;
  [[no_unique_address]] std::conditional_t<runs_ahead, Ahead<B>, NotAhead> ahead_ = make_ahead();
  Request request_;             // of the step that runs
  std::vector<double> losses_;  // [turns][parts][microbatches]
  std::vector<double> scales_;  // [microbatches] 1 / terms of the minibatch
  double terms_ = 0;            // of all microbatches
  std::optional<stagger::stop_callback<Cancel>> stop_;
  std::atomic<bool> busy_{false};
};

}  // namespace stagger::detail
