// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A pipeline with all its policies: ready to train.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <stagger/core/shape.hpp>
#include <stagger/engine/policies.hpp>
#include <stagger/engine/step.hpp>
#include <stagger/schedule/verify.hpp>

namespace stagger {

namespace detail {

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
    throw Error(Errc::bad_configuration,
                text("the placement answered ", place.size(), " places for ", ranks,
                     " ranks; it must name one for each"));
  for (int const p : place)
    if (p < 0 || p >= places)
      throw Error(Errc::bad_configuration,
                  text("the placement answered place ", p, "; there are places 0 to ", places - 1));
  return place;
}

/// A machine on a back end: one step at a time.
template <class B> class Session final : public StepOwner {
 public:
  template <class Device>
  Session(Device const& device, std::vector<Layer> layers, std::vector<int> const& cuts,
          Options const& options, int states, int ranks, std::vector<int> place, int places,
          std::shared_ptr<void const> parts)
      : parts_(std::move(parts)),
        ranks_(ranks),
        place_(std::move(place)),
        machine_(std::move(layers), cuts, options, states),
        backend_(device, machine_, places) {}

  [[nodiscard]] Machine& machine() noexcept { return machine_; }
  [[nodiscard]] Machine const& machine() const noexcept { return machine_; }
  [[nodiscard]] int ranks() const noexcept { return ranks_; }

  /// The program for so many microbatches; lays it out when it is asked for the first time.
  /// @param table  () -> the schedule's table
  template <class MakeTable>
  Program const& program(std::size_t microbatches, bool training, StalenessModel const& staleness,
                         MakeTable table) {
    if (training && staleness && machine_.options().clip_norm)
      throw Error(
          Errc::bad_configuration,
          "gradients cannot be clipped by a norm over all stages where stages update alone; leave "
          "clip_norm out, or use staleness::Synchronous");
    for (auto const& known : programs_)
      if (known->training == training && known->microbatches == static_cast<int>(microbatches))
        return *known;
    return add_program(table(), microbatches, training, staleness);
  }

  /// The part of `program` that happens once.
  [[gnu::cold]] Program const& add_program(schedule::Table made, std::size_t microbatches,
                                           bool training, StalenessModel const& staleness) {
    if (!training) made = forward_only(made);
    if (auto const fault = schedule::verify(made))
      throw Error(Errc::bad_schedule, schedule::message(fault));
    if (made.stages != machine_.stages() || made.ranks() != ranks_ ||
        made.microbatches * made.slices != static_cast<int>(microbatches))
      throw Error(Errc::bad_schedule,
                  text("the schedule made a table of ", made.ranks(), " ranks, ", made.stages,
                       " stages and ", made.microbatches * made.slices, " microbatches where ",
                       ranks_, ", ", machine_.stages(), " and ", microbatches, " were asked for"));
    LayOutOptions options;
    options.recompute = machine_.options().recompute;
    options.spare_slots = machine_.options().spare_slots;
    options.staleness = staleness;
    programs_.push_back(std::make_unique<Program>(lay_out(made, options)));
    return *programs_.back();
  }

  /// Makes a program the next one to run.
  void load(Program const& program) {
    if (loaded_ == &program) return;
    loaded_ = nullptr;
    machine_.load(program);
    backend_.load(place_);
    losses_.resize(std::max(losses_.size(), static_cast<std::size_t>(program.microbatches)));
    scales_.resize(losses_.size());
    loaded_ = &program;
  }

  /// @throws Error  bad_configuration while a step runs
  void require_idle() const {
    if (busy_.load(std::memory_order_acquire)) refuse();
  }

  void begin(Request const& request, std::stop_token stop) override {
    if (busy_.exchange(true)) refuse();
    try {
      request_ = request;
      load(*request_.program);
      StepArguments arguments = request_.arguments;
      arguments.losses = arguments.targets.first != nullptr ? losses_.data() : nullptr;
      weigh(arguments);
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

  Metrics end() override {
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
      for (std::size_t m = 0; m < microbatches; ++m) sum += losses_[m];
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
    throw Error(Errc::bad_configuration,
                "a step of this pipeline is still running; take one step after the other, or "
                "make a pipeline for each thread");
  }

  std::shared_ptr<void const> parts_;  // optimizer and loss, which steps need and trainers may drop
  int ranks_;
  std::vector<int> place_;  // [ranks]
  Machine machine_;
  B backend_;
  std::vector<std::unique_ptr<Program>> programs_;
  Program const* loaded_ = nullptr;
  Request request_;             // of the step that runs
  std::vector<double> losses_;  // [microbatches]
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
  return ops;
}

}  // namespace detail

/// Made by `Pipeline::with`: a model cut into stages, on ranks, with a schedule.
///
/// One step at a time. The first step of each number of microbatches lays out its program and
/// allocates; later ones allocate nothing, provided the stages do not.
///
/// @tparam In, Out  the first stage's input and the last stage's output
/// @tparam Chosen   the policies by slot
template <class In, class Out, class Chosen> class Trainer {
 public:
  using Input = In;
  using Output = Out;
  using Loss = typename Chosen::Loss;
  using Optimizer = typename Chosen::Optimizer;
  using Device = typename Chosen::Device;
  using Staleness = typename Chosen::Staleness;
  using Target = typename Loss::Target;

  /// For Pipeline.
  [[gnu::cold]] Trainer(std::vector<detail::Layer> layers, std::vector<int> const& cuts, Chosen,
                        typename Chosen::Schedule schedule, Staleness staleness,
                        typename Chosen::Placement const& placement, Device const& device,
                        Optimizer const& optimizer, Loss loss, Options const& options)
      : parts_(std::make_shared<Parts>(
            Parts{std::move(schedule), std::move(staleness), optimizer, std::move(loss)})) {
    int const stages = static_cast<int>(cuts.size()) + 1;
    int const chunks = parts_->schedule.chunks();
    if (chunks < 1)
      throw Error(Errc::bad_configuration,
                  text("a schedule with ", chunks,
                       " stages on each rank cannot be run; use one with at least 1"));
    if (stages % chunks != 0)
      throw Error(Errc::bad_configuration, text(stages, " stages cannot be spread over ranks with ",
                                                chunks, " each; use a multiple of ", chunks));
    int const ranks = stages / chunks;
    int const places = std::min(device_places(device), ranks);
    if (places < 1)
      throw Error(Errc::bad_configuration, text("the device offers ", device_places(device),
                                                " places for ranks; use at least 1"));
    if (!(options.deadline_s > 0))
      throw Error(Errc::bad_configuration, text("a deadline of ", options.deadline_s,
                                                " s would end every step; use a positive time"));
    if (options.clip_norm && !(*options.clip_norm > 0))
      throw Error(Errc::bad_configuration, text("gradients cannot be clipped to a norm of ",
                                                *options.clip_norm, "; use a positive norm"));
    session_ = std::make_shared<detail::Session<typename Device::Backend>>(
        device, std::move(layers), cuts, options, Optimizer::states, ranks,
        detail::checked_places(placement.place(ranks, places), ranks, places), places, parts_);
    machine().set_optimizer(&parts_->optimizer,
                            [](void const* erased, detail::LayerParameters& parameters,
                               detail::UpdateStep const& step) noexcept {
                              parameters.update(*static_cast<Optimizer const*>(erased), step);
                            });
  }

  Trainer(Trainer&&) noexcept = default;
  Trainer& operator=(Trainer&&) noexcept = default;
  ~Trainer() = default;

  /// One optimizer step on a minibatch.
  /// @param batch  [microbatches >= 1] stays until the step is done
  /// @throws Error  bad_configuration if there are no microbatches, or not one target for each, or
  /// if the schedule does
  ///                not allow that many
  Step step(Batch<Input, Target> const& batch, std::stop_token stop = {}) {
    static_assert(Staleness::synchronous,
                  "stagger: with an asynchronous staleness model there is no step that all stages "
                  "end together; "
                  "train on a stream of minibatches: trainer.stream(batch)");
    return compare(batch, true, std::move(stop));
  }

  /// A stream of minibatches without a flush between them: each stage updates its weights as soon
  /// as it has the gradient of a minibatch, and the staleness model says which weights each sees.
  /// The pipeline fills and drains once.
  ///
  /// An error in it brings parameters and optimizer state back to what they were before the stream.
  /// @param batch  [minibatches x microbatches of each] in order; stays until the stream is done
  /// @throws Error  as `step`, and if the microbatches are no whole number of minibatches
  Step stream(Batch<Input, Target> const& batch, std::stop_token stop = {}) {
    static_assert(!Staleness::synchronous,
                  "stagger: a stream needs an asynchronous staleness model, such as "
                  "staleness::WeightStashing; "
                  "synchronous training takes trainer.step(batch)");
    return compare(batch, true, std::move(stop));
  }

  /// Loss of a minibatch, forward only. Nothing changes.
  Step evaluate(Batch<Input, Target> const& batch, std::stop_token stop = {}) {
    return compare(batch, false, std::move(stop));
  }

  /// Says what a batch with other targets lacks.
  template <class T>
  requires(!std::same_as<T, Target>) Step step(Batch<Input, T> const&, std::stop_token = {}) {
    return lacks<T>();
  }
  template <class T>
  requires(!std::same_as<T, Target>) Step evaluate(Batch<Input, T> const&, std::stop_token = {}) {
    return lacks<T>();
  }

  /// The last stage's outputs, forward only.
  /// @param inputs   [microbatches >= 1]
  /// @param outputs  [microbatches] overwritten
  Step predict(std::span<Input const> inputs, std::span<Output> outputs,
               std::stop_token stop = {}) {
    require_microbatches(inputs.size());
    if (inputs.size() != outputs.size())
      throw Error(Errc::bad_configuration,
                  text(inputs.size(), " inputs need as many outputs, not ", outputs.size()));
    detail::Request request;
    request.arguments.inputs = places_of(inputs);
    request.arguments.outputs = {reinterpret_cast<std::byte*>(outputs.data()), sizeof(Output)};
    return ask(request, inputs.size(), false, std::move(stop));
  }

  /// Lays out and allocates for so many microbatches now instead of in the first step.
  void prepare(std::size_t microbatches) {
    session_->require_idle();
    session_->load(program(microbatches));
  }

  /// The training program for so many microbatches: slots, signals, peak in flight.
  Program const& program(std::size_t microbatches) {
    require_microbatches(microbatches);
    return program_for(microbatches, true);
  }

  /// The optimizer; its numbers may be changed between steps.
  [[nodiscard]] Optimizer& optimizer() noexcept { return parts_->optimizer; }

  /// Every parameter with its optimizer state, in layer order; writable between steps. Not a cheap
  /// call.
  [[nodiscard]] std::vector<ParameterState> parameters() {
    std::vector<ParameterState> states;
    for (auto& layer : machine().parameters()) layer.append_states(states);
    return states;
  }

  /// Optimizer steps taken.
  [[nodiscard]] std::int64_t steps() const noexcept { return session_->machine().steps(); }

  /// Goes on as if `steps` had been taken; the caller has written the parameters and states that
  /// belong to it.
  void resume(std::int64_t steps) noexcept { machine().resume(steps); }

  [[nodiscard]] int stages() const noexcept { return session_->machine().stages(); }
  [[nodiscard]] int ranks() const noexcept { return session_->ranks(); }

  /// Turns measuring of each action on or off.
  void record(bool on) noexcept { machine().options().record = on; }

  /// When each action of the last step started and ended, if it was recorded: seconds since the
  /// step began.
  [[nodiscard]] schedule::Timeline timeline() const {
    schedule::Timeline timeline;
    for (auto const& rank : session_->machine().ranks()) timeline.rows.push_back(rank.spans);
    return timeline;
  }

  /// [ranks] most (stage, microbatch) pairs that were in flight at once in the last step, as
  /// counted by the engine.
  [[nodiscard]] std::vector<int> peak_in_flight() const {
    std::vector<int> peak;
    for (auto const& rank : session_->machine().ranks()) peak.push_back(rank.peak_in_flight);
    return peak;
  }

  /// Memory held by the engine, in bytes by use.
  [[nodiscard]] Memory memory() const { return session_->machine().memory(); }

 private:
  struct Parts {
    typename Chosen::Schedule schedule;
    Staleness staleness;
    Optimizer optimizer;
    Loss loss;
  };

  [[nodiscard]] detail::Machine& machine() noexcept { return session_->machine(); }

  static int device_places(Device const& device) { return device.places(); }

  static void require_microbatches(std::size_t count) {
    if (count == 0)
      throw Error(Errc::bad_configuration,
                  "a minibatch of 0 microbatches cannot be run; give at least 1");
  }

  template <class T> static detail::Places places_of(std::span<T const> objects) {
    // Inputs and targets are only read; the slot table has one kind of address.
    return {reinterpret_cast<std::byte*>(const_cast<T*>(objects.data())), sizeof(T)};
  }

  Program const& program_for(std::size_t microbatches, bool training) {
    auto const& schedule = parts_->schedule;
    int slices = 1;
    if constexpr (requires { schedule.slices; }) slices = std::max(1, schedule.slices);
    if (microbatches % static_cast<std::size_t>(slices) != 0)
      throw Error(Errc::bad_configuration,
                  text(microbatches, " inputs cannot be microbatches of ", slices,
                       " slices each; give a multiple of ", slices));
    return session_->program(microbatches, training, staleness_model(), [&] {
      return schedule.table(Shape{.ranks = session_->ranks(),
                                  .microbatches = static_cast<int>(microbatches) / slices,
                                  .chunks = schedule.chunks()});
    });
  }

  [[nodiscard]] StalenessModel staleness_model() const {
    StalenessModel model;
    if constexpr (AsynchronousPolicy<Staleness>) {
      model.microbatches = parts_->staleness.microbatches();
      model.policy = &parts_->staleness;
      model.version = [](void const* policy, int minibatch, int available) {
        return static_cast<Staleness const*>(policy)->version(minibatch, available);
      };
    }
    return model;
  }

  Step ask(detail::Request& request, std::size_t microbatches, bool training,
           std::stop_token stop) {
    session_->require_idle();
    request.program = &program_for(microbatches, training);
    return {session_, request, std::move(stop)};
  }

  template <class T> static Step lacks() {
    constexpr bool has_loss = !std::same_as<Loss, detail::NoLoss>;
    static_assert(has_loss,
                  "stagger: a step needs a loss; give Pipeline::with one, such as "
                  "loss::MeanSquaredError<>{}");
    static_assert(!has_loss, "stagger: the batch's targets are not the Target of the loss");
    return {nullptr, {}, {}};
  }

  Step compare(Batch<Input, Target> const& batch, bool training, std::stop_token stop) {
    static_assert(LossFor<Loss, Output>,
                  "stagger: the loss does not accept the Output of the last stage; it needs "
                  "terms(target), value(context, y, "
                  "target) and value_and_gradient(context, y, target, scale, dy)");
    require_microbatches(batch.inputs.size());
    if (batch.inputs.size() != batch.targets.size())
      throw Error(
          Errc::bad_configuration,
          text(batch.inputs.size(), " inputs need as many targets, not ", batch.targets.size()));
    detail::Request request;
    request.arguments.inputs = places_of(std::span<Input const>(batch.inputs));
    request.arguments.targets = places_of(std::span<Target const>(batch.targets));
    request.arguments.loss = &parts_->loss;
    request.arguments.loss_ops = detail::make_loss_ops<Loss, Output>();
    return ask(request, batch.inputs.size(), training, std::move(stop));
  }

  std::shared_ptr<Parts> parts_;  // where the session's pointers lead; shared with it alone
  std::shared_ptr<detail::Session<typename Device::Backend>> session_;
};

}  // namespace stagger
