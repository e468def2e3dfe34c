// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A part of one's own in the steps of a pipeline: it is told of each step and of the
///         gradients that updates use.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include <stagger/core/combinations.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/features.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/engine/setup.hpp>
#include <stagger/model/parameter.hpp>
#include <stagger/parameters/layer_parameters.hpp>

namespace stagger {

/// Gradients of a parameter, or of some of its elements, of the mean loss: complete, with the sums
/// over the microbatches of an update and over replicas, and before Options::clip_norm scales them.
/// Valid during the call.
struct ParameterGradient {
  int layer = 0;          ///< counted from the model's input
  std::string_view name;  ///< of the parameter in its layer
  ElementType type = ElementType::f32;
  std::size_t first = 0;  ///< number of the first element in the parameter
  std::size_t size = 0;   ///< elements
  void const* data = nullptr;

  /// @tparam T      float or double, as `type` says
  /// @throws Error  mismatch for the other one
  template <ParameterElement T> [[nodiscard]] std::span<T const> values() const {
    if (element_type_of<T> != type)
      raise(Errc::mismatch, "the gradients of '", name, "' of layer ", layer, " are ",
            type == ElementType::f32 ? "floats" : "doubles", "; ask for values<",
            type == ElementType::f32 ? "float" : "double", ">()");
    return {static_cast<T const*>(data), size};
  }
};

/// A step as an observer is told of it.
struct ObservedStep {
  std::int64_t number = 0;  ///< updates before it since training began
  bool training = true;     ///< else it evaluates or predicts
  int microbatches = 0;
};

/// Derive from it to look into the steps of a pipeline, and give it to `Pipeline::with` by
/// `Observe`. An exception of `begin_step` or `gradient` fails the step: nothing is updated, or
/// pushed, but for what collective::GroupedPushes or a stream has pushed before. An observer that is
/// given to two pipelines is called by both, perhaps at once.
class StepObserver {
 public:
  StepObserver() = default;
  StepObserver(StepObserver const&) = delete;
  StepObserver& operator=(StepObserver const&) = delete;
  virtual ~StepObserver() = default;

  /// Called before each step, evaluation, prediction or stream, on the thread that begins it.
  virtual void begin_step(ObservedStep const&) {}
  /// Called when gradients are complete, before an update uses them or a push sends them: in a step
  /// once for each element, in a stream for each minibatch, and for layers that are updated in each
  /// pass, in each pass. Called on the thread of the rank that updates them; other ranks may call at
  /// the same time for other parameters, or other elements of the same one. Of several processes
  /// each tells of what it updates, so that several tell of a parameter of which each has a copy.
  /// Not called for a parameter whose gradient no stage has asked for. The step may still fail, or
  /// leave its update out, if gradients are not finite. Of a layer that a group of ranks shares,
  /// each member's part is told, and `first` counts its elements.
  virtual void gradient(ParameterGradient const&) {}
  /// Called after each of them that has begun, on the thread that ends it; not if `begin_step` of
  /// this observer threw.
  /// @param why  the error by which it failed, or null
  virtual void end_step(ObservedStep const&, std::exception_ptr const& why) noexcept {
    static_cast<void>(why);
  }
};

namespace detail {

/// The part of a machine that tells an observer.
class ObserverPart final : public StepPart {
 public:
  explicit ObserverPart(std::shared_ptr<StepObserver> observer) : observer_(std::move(observer)) {}

  void begin_step(Machine& machine) override {
    StepArguments const& asked = machine.arguments();
    told_ = asked.losses != nullptr || asked.outputs.first != nullptr;
    if (!told_) return;  // a worker only waits for late values
    Program const& program = machine.program();
    step_ = {machine.steps(), program.training, program.microbatches};
    observer_->begin_step(step_);
  }
  void gradients(LayerParameters const& layer, ByteRange range) override {
    for (std::size_t p = 0; p < layer.count(); ++p) {
      if (!layer.added(p) || !layer.overlaps(p, range)) continue;
      ByteRange const own = layer.range(p);
      std::size_t const first = range.first > own.first ? range.first : own.first;
      std::size_t const end = own.first + layer.value_bytes(p);
      std::size_t const last = range.last < end ? range.last : end;
      ParameterDeclaration const& known = layer.declaration(p);
      std::size_t const bytes = element_bytes(known.type);
      if (first >= last) continue;
      observer_->gradient({layer.number(), known.name, known.type, (first - own.first) / bytes,
                           (last - first) / bytes, layer.stored().gradients.data() + first});
    }
  }
  void end_step(Machine&, std::exception_ptr const& why) override {
    if (told_) observer_->end_step(step_, why);
  }

 private:
  std::shared_ptr<StepObserver> observer_;
  ObservedStep step_;
  bool told_ = false;  // of this step
};

/// What adds an observer to a pipeline.
class ObserverPolicy final : public PolicyPart {
 public:
  explicit ObserverPolicy(std::shared_ptr<StepObserver> observer)
      : observer_(std::move(observer)) {}
  [[nodiscard]] Features features() const noexcept override { return feature::observes; }
  [[gnu::cold]] void extend(Machine& machine, Setup const&) const override {
    machine.add(std::make_unique<ObserverPart>(observer_));
    machine.tell_gradients();
  }

 private:
  std::shared_ptr<StepObserver> observer_;
};

}  // namespace detail

/// Given to `Pipeline::with`, once for each observer. It runs on host::Threads, mpi::Processes and
/// sim::VirtualClock, where the host can read gradients.
///
/// @code
///     auto norms = std::make_shared<GradientNorms>();   // derives from StepObserver
///     auto train = sg::Pipeline{model}.with(sg::Observe{norms}, sg::loss::CrossEntropy<>{});
/// @endcode
class Observe {
 public:
  using policy_tag = PartTag;
  /// @throws Error  bad_configuration for null
  explicit Observe(std::shared_ptr<StepObserver> observer) : observer_(std::move(observer)) {
    if (observer_ == nullptr)
      raise(Errc::bad_configuration,
            "nothing can observe a pipeline by a null pointer; give Observe one that "
            "std::make_shared has made");
  }
  [[nodiscard]] std::shared_ptr<detail::PolicyPart const> part() const {
    return std::make_shared<detail::ObserverPolicy>(observer_);
  }

 private:
  std::shared_ptr<StepObserver> observer_;
};

}  // namespace stagger
