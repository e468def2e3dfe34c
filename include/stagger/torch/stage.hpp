// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A module of libtorch as a stage, on host threads.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros_like.h>

#include <stagger/core/error.hpp>
#include <stagger/model/context.hpp>
#include <stagger/model/parameter.hpp>
#include <stagger/torch/detail/graph.hpp>
#include <stagger/torch/detail/held.hpp>
#include <stagger/torch/detail/origin.hpp>
#include <stagger/torch/detail/runner.hpp>
#include <stagger/torch/detail/thread.hpp>
#include <stagger/torch/loss.hpp>
#include <stagger/torch/value.hpp>

namespace stagger::torch {

/// A module of libtorch as a layer: any `torch::nn::Module` whose forward takes one tensor and
/// returns one. All have this type, so a `std::vector<Stage>` is a model of whatever modules.
///
///     std::vector<sg::torch::Stage> layers;
///     layers.emplace_back(torch::nn::Linear(784, 100));
///     layers.emplace_back(torch::nn::ReLU());
///     auto train = sg::Pipeline{sg::Sequential{layers}}.with(...);
///
/// The stage works on a copy of the module, whose parameters are views of the engine's memory; the
/// module that was given keeps its values. `copy_parameters` takes those of a trainer back to it.
///
/// Parameters with `requires_grad` are trained, the others are not. All are of type float.
class Stage {
 public:
  using Input = Value;
  using Output = Value;
  /// What forward keeps for backward: libtorch's graph, which is not counted in bytes.
  struct Saved {
    at::Tensor x;                        // the graph's leaf
    at::Tensor y;                        // and its end
    ::torch::autograd::edge_list nodes;  // between the halves of backward: where the second begins
    ::torch::autograd::variable_list gradients;  // at these nodes
  };

  /// @param given  the holder of a module, a std::shared_ptr to one, an AnyModule, or a function
  ///               that returns one of the first two, for a module that has no clone()
  /// @throws Error  bad_configuration for an empty holder, a parameter of another type than float,
  ///                or one that another module has, too
  template <class Given>
    requires(!std::same_as<std::remove_cvref_t<Given>, Stage>)
  explicit Stage(Given&& given)
      : Stage(std::remove_cvref_t<Given>(std::forward<Given>(given)), 0) {}

  Stage(Stage const& other)
      : origin_(other.origin_),
        names_(other.names_),
        runner_(other.runner_),
        parameters_(other.parameters_) {
    find_leaves();
  }
  Stage(Stage&&) noexcept = default;
  Stage& operator=(Stage const& other) { return *this = Stage(other); }
  Stage& operator=(Stage&&) noexcept = default;
  ~Stage() = default;

  /// For engines, which take them over once.
  [[nodiscard]] std::span<Parameter<float>> parameters() noexcept {
    origin_ = nullptr;
    return parameters_;
  }

  /// @throws Error  bad_data with what libtorch says, and for a module that changes its input;
  ///                mismatch for one that returns an undefined tensor
  void forward(Context& context, Value const& x, Value& y, Saved& saved) {
    saved = {};
    detail::know_thread();
    runner_.guarded(context, [&] {
      bind(context);
      bool const training = context.training();
      runner_.set_training(training);
      at::AutoGradMode const grad(training);
      at::Tensor in = x.tensor().detach();
      // Nobody wants the gradient of the model's input.
      if (training && context.layer() != 0 && (in.is_floating_point() || in.is_complex()))
        in.requires_grad_();
      auto const version = in._version();
      at::Tensor out = runner_.run(context, in);
      if (in._version() != version) [[unlikely]]
        runner_.refuse_in_place(context);
      if (!out.defined()) [[unlikely]]
        raise(Errc::mismatch, "forward of ", runner_.place(context),
              " returned an undefined tensor; return the output");
      bool const shown =
          detail::shares_with_any(out, leaves_) || detail::shares_with_any(out, runner_.buffers());
      y = detail::of_its_own(shown ? out.detach().clone() : out.detach(), x.tensor());
      if (training) {
        saved.x = std::move(in);
        saved.y = std::move(out);
      }
    });
  }

  void backward(Context& context, Value const& x, Value const& dy, Value& dx, Saved& saved) {
    runner_.guarded(context, [&] {
      bind_gradients(context);
      if (saved.y.requires_grad())
        detail::walk({detail::edge_of(saved.y)}, {dy.tensor()}, false, true);
      if (context.layer() != 0) set_gradient(saved.x.grad(), x, dy, dx);
      saved = {};
    });
  }

  void backward_input(Context& context, Value const& x, Value const& dy, Value& dx, Saved& saved) {
    if (context.layer() == 0) return;  // all of it is backward_weight
    if (!trains_) return backward(context, x, dy, dx, saved);
    runner_.guarded(context, [&] {
      bind(context);
      if (!saved.x.requires_grad() || !saved.y.grad_fn() || !branches_.find(saved.y, saved.x))
        return set_gradient(saved.y.is_same(saved.x) ? dy.tensor() : at::Tensor(), x, dy, dx);
      ::torch::autograd::edge_list wanted{detail::edge_of(saved.x)};
      wanted.insert(wanted.end(), branches_.nodes().begin(), branches_.nodes().end());
      auto gradients = detail::walk({detail::edge_of(saved.y)}, {dy.tensor()}, true, false, wanted);
      set_gradient(gradients[0], x, dy, dx);
      for (std::size_t k = 1; k < gradients.size(); ++k)
        if (gradients[k].defined()) {
          saved.nodes.push_back(std::move(wanted[k]));
          saved.gradients.push_back(std::move(gradients[k]));
        }
      branches_.cut();
      saved.x.reset();
      saved.y.reset();
    });
  }

  void backward_weight(Context& context, Value const&, Value const& dy, Saved& saved) {
    if (!trains_) return static_cast<void>(saved = {});
    runner_.guarded(context, [&] {
      bind_gradients(context);
      if (!saved.nodes.empty())
        detail::walk(saved.nodes, saved.gradients, false, true);
      else if (saved.y.defined() && saved.y.requires_grad())
        detail::walk({detail::edge_of(saved.y)}, {dy.tensor()}, false, true);
      saved = {};
    });
  }

 private:
  template <class Given>
  Stage(Given given, int)
      : origin_(origin_of(given)),
        names_(names_of(given)),
        runner_(detail::hold(std::move(given))),
        parameters_(declared(runner_.module(), names_)) {
    if (origin_ == nullptr) origin_ = std::make_shared<detail::Origin>(runner_.module());
    find_leaves();
  }

  /// @return  none for a function, whose modules all have their own
  template <class Given> static std::vector<std::string> names_of(Given const& given) {
    if constexpr (std::same_as<Given, detail::AnyModule>)
      return given.is_empty() ? std::vector<std::string>() : keys_of(*given.ptr());
    else if constexpr (detail::Holder<Given> || detail::is_shared_module<Given>)
      return detail::pointer_to(given) == nullptr ? std::vector<std::string>() : keys_of(*given);
    else
      return {};
  }
  static std::vector<std::string> keys_of(::torch::nn::Module const& module) {
    return module.named_parameters().keys();
  }
  /// @return  none for a function, whose module nobody else has
  template <class Given> static std::shared_ptr<detail::Origin> origin_of(Given const& given) {
    if constexpr (std::same_as<Given, detail::AnyModule>)
      return given.is_empty() ? nullptr : std::make_shared<detail::Origin>(*given.ptr());
    else if constexpr (detail::Holder<Given> || detail::is_shared_module<Given>)
      return detail::pointer_to(given) == nullptr ? nullptr
                                                  : std::make_shared<detail::Origin>(*given);
    else
      return nullptr;
  }

  /// @param names  of the module that was given, of which a clone may have others
  [[gnu::cold]] static std::vector<Parameter<float>> declared(
      ::torch::nn::Module const& module, std::vector<std::string> const& names) {
    std::vector<Parameter<float>> all;
    for (auto const& each : module.named_parameters()) {
      at::Tensor const& given = each.value();
      std::string const& name = names.empty() ? each.key() : names[all.size()];
      if (given.scalar_type() != at::kFloat || !given.is_cpu())
        raise(Errc::bad_configuration, "the parameter '", name, "' of ", module.name(),
              " has elements of type ", c10::toString(given.scalar_type()), " on ",
              detail::in_words(given.device()),
              ", but a stage trains floats on the host; convert the module with to(torch::kFloat) "
              "and to(torch::kCPU)");
      at::Tensor const values = given.detach().contiguous();
      auto const* const first = values.const_data_ptr<float>();
      Parameter<float> parameter(name, std::vector<float>(first, first + values.numel()));
      if (values.dim() >= 2 && values.numel() != 0)
        parameter = std::move(parameter).matrix(static_cast<std::uint64_t>(values.size(0)));
      all.push_back(std::move(parameter));
    }
    return all;
  }

  [[gnu::cold]] void find_leaves() {
    leaves_ = runner_.module().parameters();
    gradients_.resize(leaves_.size());
    for (at::Tensor const& leaf : leaves_) trains_ = trains_ || leaf.requires_grad();
  }

  /// @param memory  [extents] of floats
  static at::Tensor view(float* memory, at::IntArrayRef extents) {
    return at::for_blob(memory, extents).options(at::kFloat).target_device(at::kCPU).make_tensor();
  }

  /// Lets the module's parameters be the version that this action must see. In backward too, since
  /// libtorch keeps a parameter itself for it, not its memory.
  void bind(Context const& context) {
    for (std::size_t i = 0; i < leaves_.size(); ++i) {
      float const* const values = context[parameters_[i]].data();
      if (leaves_[i].const_data_ptr() != values)
        leaves_[i].set_data(view(const_cast<float*>(values), leaves_[i].sizes()));
    }
  }
  /// Lets `grad` of each parameter be the engine's gradient, to which libtorch then adds.
  void bind_gradients(Context const& context) {
    bind(context);
    for (std::size_t i = 0; i < leaves_.size(); ++i) {
      if (!leaves_[i].requires_grad()) continue;
      float* const sum = context.gradient(parameters_[i]).data();
      if (!gradients_[i].defined() || gradients_[i].const_data_ptr() != sum)
        gradients_[i] = view(sum, leaves_[i].sizes());
      if (!leaves_[i].grad().is_same(gradients_[i])) leaves_[i].mutable_grad() = gradients_[i];
    }
  }

  static void set_gradient(at::Tensor gradient, Value const& x, Value const& dy, Value& dx) {
    dx = gradient.defined() ? detail::of_its_own(std::move(gradient), dy.tensor())
                            : at::zeros_like(x.tensor());
  }

  std::shared_ptr<detail::Origin> origin_;  // until an engine has taken over the parameters
  std::vector<std::string> names_;          // of its parameters; none: as the module has them
  detail::Runner runner_;
  std::vector<Parameter<float>> parameters_;
  std::vector<at::Tensor> leaves_;     // of the module, one for each parameter
  std::vector<at::Tensor> gradients_;  // views of the engine's memory
  detail::Branches branches_;
  bool trains_ = false;
};

/// Copies the trained values of a layer into a module of the same type, such as the one from which
/// the stage was made:
///
///     sg::torch::copy_parameters(train.parameters(), 0, *linear);
///
/// @param states  `parameters()` of the trainer
/// @param layer   counted from the model's input
/// @throws Error  mismatch if the layer has no such parameter
inline void copy_parameters(std::span<ParameterState const> states, int layer,
                            ::torch::nn::Module const& module) {
  at::NoGradGuard const none;
  for (auto const& each : module.named_parameters()) {
    std::string const name = std::to_string(layer) + "." + each.key();
    ParameterState const* found = nullptr;
    for (ParameterState const& state : states)
      if (state.name == name) found = &state;
    auto const bytes = each.value().nbytes();
    if (found == nullptr || found->value.size() != bytes)
      raise(Errc::mismatch, "the trainer has ",
            found == nullptr ? "no parameter '" : "another size of the parameter '", name,
            "', which ", module.name(), " has; give the module of layer ", layer);
    auto* const values = reinterpret_cast<float*>(found->value.data());
    each.value().copy_(at::from_blob(values, each.value().sizes(), at::kFloat));
  }
}

}  // namespace stagger::torch
