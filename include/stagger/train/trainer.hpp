// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A pipeline with all its policies: ready to train.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <stagger/core/list.hpp>
#include <stagger/core/rows.hpp>
#include <stagger/core/shape.hpp>
#include <stagger/core/stop_token.hpp>
#include <stagger/engine/replica_run.hpp>
#include <stagger/engine/session.hpp>
#include <stagger/engine/slots.hpp>
#include <stagger/model/stage.hpp>
#include <stagger/train/detail/kept_batches.hpp>
#include <stagger/train/detail/not_a_batch.hpp>
#include <stagger/train/detail/policies.hpp>

namespace stagger {

namespace detail {

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
    Output const& output = *static_cast<Output const*>(y);
    Output& gradient = *static_cast<Output*>(dy);
    double const sum = static_cast<Loss const*>(loss)->value_and_gradient(
        context, output, *static_cast<typename Loss::Target const*>(target), scale, gradient);
    check_output_gradient(context, output, gradient);
    return sum;
  };
  if constexpr (Rows<typename Loss::Target>::exist) ops.target = &slot_type<typename Loss::Target>;
  return ops;
}

template <class T> Places places_of(std::span<T const> objects) {
  if (objects.empty()) return {};
  // Inputs and targets are only read, but the slot table has only pointers to non-const.
  return {reinterpret_cast<std::byte*>(const_cast<T*>(objects.data())), sizeof(T)};
}

}  // namespace detail

// Says that what is returned refers to an argument, for the warnings of clang.
#if __has_cpp_attribute(clang::lifetimebound)
#define STAGGER_LIFETIMEBOUND [[clang::lifetimebound]]
#else
#define STAGGER_LIFETIMEBOUND
#endif

/// Made by `Pipeline::with`: a model divided into stages, on ranks, with a schedule.
///
/// It is for one thread at a time, and takes one step at a time. While a step runs, `steps`,
/// `stages` and `ranks` can be called from any thread; every other function throws Error
/// (bad_configuration), and so do functions that two threads call at the same moment.
///
/// The first step with a number of microbatches lays out its program
/// and allocates; later ones allocate nothing, provided that the stages do not.
///
/// Its type does not depend on the schedule, the partitioner, the collective, the placement, nor on
/// the device if that is host threads, processes or the virtual clock, so a program can choose
/// among them at run time.
///
/// @code
///     Trainer<Tensor<>, Tensor<>, optimizer::Sgd, loss::MeanSquaredError<>> train =
///         simulated ? pipeline.with(loss, sim::VirtualClock{})
///                   : pipeline.with(loss, schedule::GPipe{}, host::Threads{2});
/// @endcode
///
/// @tparam In, Out      the first stage's input and the last stage's output
/// @tparam synchronous  whether all stages end a step together, as the staleness model says
/// @tparam Device       a device that records steps as graphs; void for all others
template <class In, class Out, class Optimizer, class Loss, bool synchronous = true,
          class Device = void>
class Trainer : public detail::WrongSteps<Trainer<In, Out, Optimizer, Loss, synchronous, Device>,
                                          In, Out, typename Loss::Target>,
                public detail::KeptBatches<Trainer<In, Out, Optimizer, Loss, synchronous, Device>,
                                           In, Out, typename Loss::Target> {
  using Wrong = detail::WrongSteps<Trainer, In, Out, typename Loss::Target>;
  using Keeping = detail::KeptBatches<Trainer, In, Out, typename Loss::Target>;

 public:
  using Input = In;
  using Output = Out;
  using Target = typename Loss::Target;

  /// For Pipeline. The session keeps optimizer and loss. @param given  before its numbers changed
  Trainer(std::shared_ptr<detail::Session> session, Optimizer& optimizer, Optimizer const& given,
          Loss const& loss)
      : session_(std::move(session)), optimizer_(&optimizer), given_(&given), loss_(&loss) {}

  Trainer(Trainer&&) noexcept = default;
  Trainer& operator=(Trainer&&) noexcept = default;
  ~Trainer() = default;

  /// Declared to say that a trainer cannot be copied.
  template <std::same_as<Trainer> T> Trainer(T& other) : Trainer(std::move(other)) {
    static_assert(!std::is_same_v<T, Trainer>,
                  "stagger: a Trainer cannot be copied, there is one for each pipeline; pass it by "
                  "reference, or move it: std::move(train)");
  }
  template <std::same_as<Trainer> T> Trainer& operator=(T& other) {
    static_assert(!std::is_same_v<T, Trainer>,
                  "stagger: a Trainer cannot be copied, there is one for each pipeline; keep a "
                  "reference, or move it: std::move(train)");
    return *this = std::move(other);
  }

  // Those that report other arguments, and a const trainer; and those for a batch that is a
  // temporary, or moved: the step keeps it.
  using Keeping::step, Keeping::stream, Keeping::evaluate, Keeping::predict;
  using Wrong::step, Wrong::stream, Wrong::evaluate, Wrong::predict;

  /// One optimizer step on a minibatch.
  /// @param batch  [microbatches >= 1] must stay valid until the step is done
  /// @throws Error  bad_configuration if there are no microbatches, or not one target for each, or
  ///                if the schedule does not allow that many
  Step step(Batch<Input, Target> const& batch STAGGER_LIFETIMEBOUND,
            stagger::stop_token stop = {}) {
    static_assert(synchronous,
                  "stagger: with an asynchronous staleness model there is no step that all stages "
                  "end together; train on a stream of minibatches: trainer.stream(batch)");
    return compare(batch, true, std::move(stop));
  }

  /// A stream of minibatches without a flush between them: each stage updates its weights as soon
  /// as it has the gradient of a minibatch, and the staleness model says which weights each sees.
  /// The pipeline fills and drains once.
  ///
  /// After an error, parameters and optimizer state are as before it; of a worker, the server's.
  /// @param batch  [minibatches x microbatches of each] must stay valid until the stream is done
  /// @throws Error  as for `step`, and if the microbatches are not a whole number of minibatches
  Step stream(Batch<Input, Target> const& batch STAGGER_LIFETIMEBOUND,
              stagger::stop_token stop = {}) {
    static_assert(!synchronous,
                  "stagger: a stream needs an asynchronous staleness model, such as "
                  "staleness::WeightStashing; synchronous training takes trainer.step(batch)");
    return compare(batch, true, std::move(stop));
  }

  /// Loss of a minibatch, forward only. Nothing changes.
  Step evaluate(Batch<Input, Target> const& batch STAGGER_LIFETIMEBOUND,
                stagger::stop_token stop = {}) {
    return compare(batch, false, std::move(stop));
  }

  /// The last stage's outputs, forward only.
  /// @param inputs   [microbatches >= 1]; over processes, none where no rank reads them
  /// @param outputs  [microbatches] overwritten; over mpi::Processes in each process, over nccl::Gpus
  ///                 in each that runs the last stage for the microbatch
  Step predict(std::span<Input const> inputs, std::span<Output> outputs,
               stagger::stop_token stop = {}) {
    detail::Request request;
    request.arguments.inputs = detail::places_of(inputs);
    request.arguments.outputs = {reinterpret_cast<std::byte*>(outputs.data()), sizeof(Output)};
    session_->choose(request, {.inputs = inputs.size(), .beside = outputs.size(), .outputs = true},
                     "outputs", false);
    return {session_, request, std::move(stop)};
  }

  /// Lays out the program for this many microbatches now, not in the first step, and allocates.
  void prepare(std::size_t microbatches) { session_->make_ready(microbatches); }

  /// The training program for this many microbatches: slots, signals, peak in flight. Valid until
  /// the next call; if gradient groups are chosen again, a later step may run another one.
  Program const& program(std::size_t microbatches) { return hold()->shown_program(microbatches); }

  /// The optimizer; its numbers may be changed between steps.
  [[nodiscard]] Optimizer& optimizer() {
    session_->require_idle();
    return *optimizer_;
  }
  /// As it was given to Pipeline::with.
  [[nodiscard]] Optimizer const& given_optimizer() const noexcept { return *given_; }

  /// Every parameter with its optimizer state, in layer order; writable between steps. Not a cheap
  /// call. On a GPU, and of layers that groups split, a copy, valid until the next step reads it
  /// back. Of a worker of a parameter server, valid until the next step, which has the server's
  /// values then; where it pushes gradients, the server has the optimizer's state, too.
  [[nodiscard]] std::vector<ParameterState> parameters() { return states(hold(), false); }
  /// The same with values only for the parameters that this process has; the others have only
  /// names. Over processes, which those are is known after `prepare` or a step.
  [[nodiscard]] std::vector<ParameterState> own_parameters() { return states(hold(), true); }
  /// Every parameter without its values, in layer order.
  [[nodiscard]] List<ParameterShape> parameter_shapes() const {
    return Facts::shapes(hold()->machine());
  }

  /// Whether a layer keeps its own weights, which are not among the parameters.
  [[nodiscard]] bool keeps_weights() const { return keep_weights(hold()->machine().model.layers); }

  /// Shows every parameter with its optimizer state in process `to`, one after the other in layer
  /// order. It needs memory for only one parameter of other processes at a time. All processes call
  /// it. On devices without several processes, `visit` is called in this one.
  /// @param  visit  callable with ParameterState const&, valid during the call; what it throws is
  ///                thrown after all parameters have been sent
  /// @return whether `visit` was called in this process
  template <class Visit> bool each_parameter(int to, Visit&& visit) {
    Hold const held = hold();
    void const* const self = &visit;
    detail::Visited const visited = session_->visit_parameters(
        to, {const_cast<void*>(self), [](void* erased, ParameterState const& state) {
               (*static_cast<std::remove_reference_t<Visit>*>(erased))(state);
             }});
    if (visited == detail::Visited::not_spread)
      for (auto const& state : states(held, false)) visit(state);
    return visited != detail::Visited::elsewhere;
  }

  /// Over several processes, sends the parameters of the last step to every process, or to process
  /// `to`. Each process updates only those of its own stages, and keeps the others only until the
  /// next step. All processes call it. On other devices it does nothing.
  void gather_parameters(int to = -1) { hold()->gather_parameters(to); }

  /// Waits for all steps that were given to `enqueue`. Every other function that reads parameters,
  /// or takes a step in another way, waits by itself.
  /// @throws  the error of a step that has not been reported yet; Error(device) for a lost GPU
  void settle() { hold()->settle(nullptr); }

  /// Optimizer steps taken; on a device that runs ahead, including those that are only enqueued.
  [[nodiscard]] std::int64_t steps() const noexcept { return session_->steps(); }

  /// Continues as if `steps` had been taken; the caller has restored the parameters and states of
  /// that step.
  /// @throws Error  bad_configuration unless 0 <= steps <= 2^48
  void resume(std::int64_t steps) { hold()->resume(steps); }

  /// Lets `read` write parameters and optimizer, and resumes at the step that it returns. From
  /// beginning to end the trainer is held: another thread's step is refused, as is this call while
  /// a step runs.
  /// @param read  callable with the shapes of all parameters, the states of own_parameters(), and
  ///              the optimizer; what it throws is passed on, and the trainer is at the step before
  /// @throws Error  as resume
  template <class Read> void restore_parameters(Read&& read) {
    Hold const held = hold();
    held->resume(read(Facts::shapes(held->machine()), states(held, true), *optimizer_));
  }

  /// From the next step on, records an iteration as a graph of the device and replays it; records
  /// it again when its arguments change. Only for devices with graphs.
  /// @return  counters of what is done with the graph, which are kept up to date
  auto const& capture(bool on = true)
    requires(!std::is_void_v<Device>)
  {
    Hold const held = hold();
    return static_cast<detail::SessionOn<Device>&>(*session_).backend().capture(on);
  }

  [[nodiscard]] int stages() const noexcept { return session_->stages(); }
  /// The number of ranks; the replicas of one position have consecutive numbers.
  [[nodiscard]] int ranks() const noexcept { return session_->ranks(); }

  /// Turns measuring of each action on or off.
  void record(bool on) { hold()->record(on); }

  /// Where the last step that failed did, if a layer or the loss threw in this process: "rank 1 in
  /// 1F0, layer 1". What they throw is passed on as it is, and does not say that. Empty otherwise.
  [[nodiscard]] std::string failed_at() const { return Facts::failed_at(hold()->machine()); }

  /// When each action of the last step started and ended: seconds since the step began.
  /// @throws Error  bad_configuration if it was not recorded, also from the two functions below
  [[nodiscard]] schedule::Timeline timeline() const {
    return Facts::timeline(hold()->machine(), ranks(), false);
  }

  /// Likewise for the sums of gradient groups: a row for each rank of a replicated position, with
  /// REDUCE_GRAD of its stage in the order of the groups, and with collective::GroupedPushes PUSH.
  [[nodiscard]] schedule::Timeline reductions() const {
    return Facts::timeline(hold()->machine(), ranks(), true);
  }

  /// [ranks] most (stage, microbatch) pairs that were in flight at once in the
  /// last step, as counted by the engine.
  [[nodiscard]] std::vector<int> peak_in_flight() const {
    return Facts::peak_in_flight(hold()->machine(), ranks());
  }

  /// Memory held by the engine, in bytes by use; not the batches that steps keep.
  [[nodiscard]] Memory memory() const { return Facts::memory(hold()->machine()); }

  /// Messages and bytes that have gone from rank to rank and to and from a parameter server since
  /// the pipeline was made; not in steps that failed. Each process counts what its own ranks send.
  [[nodiscard]] Traffic traffic() const { return Facts::traffic(hold()->machine(), ranks()); }

  /// Of a worker of a parameter server, by the stages of this process: [k] how many minibatches saw
  /// weights that lacked k of as many pushes of another worker as this one had made (last: or more).
  /// @param worker  the other; none: whichever was lacked most. @throws Error  bad_configuration
  [[nodiscard]] std::vector<std::uint64_t> staleness(std::optional<int> worker = {}) const {
    return Facts::staleness(hold()->machine(), worker);
  }

  /// For engines and profilers.
  [[nodiscard]] detail::Machine& machine() noexcept { return session_->machine(); }
  /// Refuses steps and other calls as long as it lives.
  [[nodiscard]] detail::Session::Hold hold() const { return detail::Session::Hold(*session_); }

 private:
  using Hold = detail::Session::Hold;
  using Facts = detail::MachineFacts<detail::Machine>;

  [[nodiscard]] static std::vector<ParameterState> states(Hold const& held, bool own) {
    held->settle_parameters();
    std::vector<ParameterState> states;
    Facts::append_states(held->machine(), states, own);
    return states;
  }

  [[gnu::cold]] Step compare(Batch<Input, Target> const& batch, bool training,
                             stagger::stop_token stop) {
    detail::Request request;
    request.arguments.inputs = detail::places_of(std::span<Input const>(batch.inputs));
    request.arguments.targets = detail::places_of(std::span<Target const>(batch.targets));
    request.arguments.loss = loss_;
    request.arguments.loss_ops = detail::make_loss_ops<Loss, Output>();
    session_->choose(request, {batch.inputs.size(), batch.targets.size(), batch.microbatches},
                     "targets", training);
    return {session_, request, std::move(stop)};
  }

  std::shared_ptr<detail::Session> session_;  // keeps the other members alive
  Optimizer* optimizer_;
  Optimizer const* given_;
  Loss const* loss_;
};

#undef STAGGER_LIFETIMEBOUND

}  // namespace stagger
