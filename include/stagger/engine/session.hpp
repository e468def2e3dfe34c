// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A machine on a back end: its programs, and one step at a time from begin to end.

#include <algorithm>
#include <atomic>
#include <coroutine>
#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <stop_token>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/core/list.hpp>
#include <stagger/core/text.hpp>
#include <stagger/engine/lay_out.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/engine/step.hpp>

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

/// What a placement answered.
/// @throws Error  bad_configuration unless that is a place that exists for each rank
[[nodiscard]] inline std::vector<int> checked_places(std::vector<int> place, int ranks,
                                                     int places) {
  if (place.size() != static_cast<std::size_t>(ranks))
    raise(Errc::bad_configuration, "the placement answered ", place.size(), " places for ", ranks,
          " ranks; it must name one for each");
  for (int const p : place)
    if (p < 0 || p >= places)
      raise(Errc::bad_configuration, "the placement answered place ", p, "; there are places 0 to ",
            places - 1);
  return place;
}

/// A machine on a back end: one step at a time.
template <class B> class Session final : public StepOwner {
 public:
  template <class Device>
  Session(Device const& device, List<Layer> layers, std::vector<int> const& cuts,
          Options const& options, int states, int positions, std::vector<int> place, int places,
          int spare, std::shared_ptr<void const> parts)
      : parts_(std::move(parts)),
        positions_(positions),
        place_(std::move(place)),
        ranks_(place_.size()),
        places_(places),
        spare_(spare),
        machine_(std::move(layers), cuts, options, states, memory_of(device)),
        backend_(device, machine_, places + spare) {}

  [[nodiscard]] B& backend() noexcept { return backend_; }
  [[nodiscard]] Machine& machine() noexcept { return machine_; }
  [[nodiscard]] Machine const& machine() const noexcept { return machine_; }
  [[nodiscard]] int positions() const noexcept { return positions_; }
  [[nodiscard]] int ranks() const noexcept { return static_cast<int>(ranks_); }

  /// The program for so many microbatches; lays it out when it is asked for the first time.
  /// @param table  () -> the schedule's table
  template <class MakeTable>
  Program const& program(std::size_t microbatches, bool training, StalenessModel const& staleness,
                         MakeTable table) {
    if (training && staleness && machine_.options().clip_norm)
      raise(
          Errc::bad_configuration,
          "gradients cannot be clipped by a norm over all stages where stages update alone; leave "
          "clip_norm out, or use staleness::Synchronous");
    List<GradientGroup> const* groups = nullptr;
    if constexpr (requires { B::sums_while_running; }) groups = machine_.groups();
    for (auto const& known : programs_)
      if (known->training == training && known->microbatches == static_cast<int>(microbatches) &&
          (groups == nullptr || !training || known->groups == *groups))
        return *known;
    return add_program(table(), microbatches, training, staleness, groups);
  }

  /// The part of `program` that happens once.
  [[gnu::cold]] Program const& add_program(schedule::Table made, std::size_t microbatches,
                                           bool training, StalenessModel const& staleness,
                                           List<GradientGroup> const* groups) {
    if (!training) made = forward_only(made);
    if (made.stages != machine_.stages() || made.ranks() != positions_ ||
        made.microbatches * made.slices != static_cast<int>(microbatches))
      raise(Errc::bad_schedule, "the schedule made a table of ", made.ranks(), " ranks, ",
            made.stages, " stages and ", made.microbatches * made.slices, " microbatches where ",
            positions_, ", ", machine_.stages(), " and ", microbatches, " were asked for");
    LayOutOptions options;
    options.recompute = machine_.options().recompute;
    options.spare_slots = machine_.options().spare_slots;
    options.staleness = staleness;
    options.replicas = &machine_.options().replicas;
    options.groups = groups;
    programs_.push_back(std::make_unique<Program>(lay_out(made, options)));
    return *programs_.back();
  }

  /// Makes a program the next one to run.
  [[gnu::cold]] void load(Program const& program) {
    if (loaded_ == &program) return;
    loaded_ = nullptr;
    machine_.load(program);
    while (place_.size() > ranks_) place_.pop_back();
    for (std::size_t r = ranks_; r < program.ranks.size(); ++r) {
      int const beside = place_[static_cast<std::size_t>(program.ranks[r].beside)];
      place_.push_back(spare_ == 0 ? beside : places_ + static_cast<int>(r - ranks_) % spare_);
    }
    backend_.load(place_);
    losses_.resize(
        std::max(losses_.size(), static_cast<std::size_t>(program.microbatches) * parts()));
    scales_.resize(losses_.size());
    loaded_ = &program;
  }

  /// @throws Error  bad_configuration while a step runs
  void require_idle() const {
    if (busy_.load(std::memory_order_acquire)) refuse();
  }

  [[gnu::cold]] void begin(Request const& request, std::stop_token stop) override {
    if (busy_.exchange(true)) refuse();
    try {
      request_ = request;
      load(*request_.program);
      StepArguments arguments = request_.arguments;
      arguments.losses = arguments.targets.first != nullptr ? losses_.data() : nullptr;
      weigh(arguments);
      if (parts() > 1) std::fill(losses_.begin(), losses_.end(), 0.0);
      machine_.begin_step(arguments);
      if (stop.stop_possible()) stop_.emplace(std::move(stop), Cancel{this});
    } catch (...) {
      busy_.store(false);
      throw;
    }
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
    struct Release {
      std::atomic<bool>& busy;
      ~Release() { busy.store(false, std::memory_order_release); }
    } const release{busy_};
    machine_.end_step();
    Metrics metrics;
    metrics.terms = terms_;
    metrics.gradient_norm = machine_.gradient_norm();
    if (request_.arguments.targets.first != nullptr) {
      double sum = 0;
      auto const microbatches = static_cast<std::size_t>(request_.program->microbatches);
      for (std::size_t m = 0; m < microbatches; ++m)
        for (std::size_t part = 0; part < parts(); ++part) sum += losses_[part * microbatches + m];
      metrics.loss = terms_ > 0 ? sum / terms_ : 0;
    }
    return metrics;
  }

 private:
  struct Cancel {
    Session* session;
    void operator()() const noexcept {
      session->backend_.fail(std::make_exception_ptr(
          Error(Errc::cancelled, text("the step was cancelled; parameters are those after step ",
                                      session->machine_.steps()))));
    }
  };

  /// Where the device policy wants parameters to lie.
  template <class Device> static ParameterMemory memory_of(Device const& device) {
    if constexpr (requires { device.parameter_memory(); })
      return device.parameter_memory();
    else
      return {};
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

  std::shared_ptr<void const> parts_;  // optimizer and loss, which steps need and trainers may drop
  int positions_;                      // rows of the schedule's table
  std::vector<int> place_;             // [ranks, then those that add up gradients beside them]
  std::size_t ranks_;                  // that compute
  int places_;                         // for them
  int spare_;                          // further places, for the others
  Machine machine_;
  B backend_;
  std::vector<std::unique_ptr<Program>> programs_;
  Program const* loaded_ = nullptr;
  Request request_;             // of the step that runs
  std::vector<double> losses_;  // [parts][microbatches]
  std::vector<double> scales_;  // [microbatches] 1 / terms of the minibatch
  double terms_ = 0;            // of all microbatches
  std::optional<std::stop_callback<Cancel>> stop_;
  std::atomic<bool> busy_{false};
};

template <class Loss, class Output> constexpr LossOps make_loss_ops() {
  LossOps ops;
  ops.terms = [](void const* loss, void const* target) -> double {
    return static_cast<Loss const*>(loss)->terms(
        *static_cast<typename Loss::Target const*>(target));
  };
  ops.value = [](void const* loss, Context& context, void const* y, void const* target) -> double {
    return static_cast<Loss const*>(loss)->value(
        context, *static_cast<Output const*>(y),
        *static_cast<typename Loss::Target const*>(target));
  };
  ops.value_and_gradient = [](void const* loss, Context& context, void const* y, void const* target,
                              double scale, void* dy) -> double {
    return static_cast<Loss const*>(loss)->value_and_gradient(
        context, *static_cast<Output const*>(y), *static_cast<typename Loss::Target const*>(target),
        scale, *static_cast<Output*>(dy));
  };
  if constexpr (Rows<typename Loss::Target>::exist) ops.target = &slot_type<typename Loss::Target>;
  return ops;
}

}  // namespace stagger::detail
