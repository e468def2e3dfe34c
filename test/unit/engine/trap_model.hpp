// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Layers of one number that call the test at each of their actions.

#include <cstddef>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "small_model.hpp"

namespace trap_model {

namespace sg = stagger;
using small_model::bits;
using small_model::Made;

enum class Function { forward, input, weight, loss };

/// One call of a layer's function, or of the loss.
struct Call {
  Function what = Function::forward;
  int layer = 0;
  int microbatch = 0;
  friend bool operator==(Call const&, Call const&) = default;
};

inline std::string name(Call const& call) {
  return std::to_string(call.layer) + "FIWL"[static_cast<int>(call.what)] +
         std::to_string(call.microbatch);
}

/// What the test does within a call; shared by all copies of a layer.
using Hook = std::shared_ptr<std::function<void(Call const&)>>;

inline Hook make_hook() {
  return std::make_shared<std::function<void(Call const&)>>([](Call const&) {});
}

struct Layer {
  using Input = float;
  using Output = float;
  Hook hook;
  sg::Parameter<> weight;
  explicit Layer(Hook h, float initial = 0.9F)
      : hook(std::move(h)), weight("weight", {initial, 0.1F}) {}
  auto parameters() { return std::tie(weight); }
  void forward(sg::Context& context, float const& x, float& y, sg::NothingSaved&) {
    y = context[weight][0] * x + context[weight][1];
    call(Function::forward, context);
  }
  void backward_input(sg::Context& context, float const&, float const& dy, float& dx,
                      sg::NothingSaved&) {
    dx = dy * context[weight][0];
    call(Function::input, context);
  }
  void backward_weight(sg::Context& context, float const& x, float const& dy, sg::NothingSaved&) {
    context.gradient(weight)[0] += dy * x;  // half of it is done when the trap closes
    call(Function::weight, context);
    context.gradient(weight)[1] += dy;
  }
  void call(Function what, sg::Context const& context) {
    (*hook)({what, context.layer(), context.microbatch()});
  }
};

struct Loss {
  using policy_tag = sg::LossTag;
  using Target = float;
  Hook hook;
  double terms(float const&) const { return 1; }
  double value(sg::Context& context, float const& y, float const& t) const {
    (*hook)({Function::loss, context.layer(), context.microbatch()});
    return static_cast<double>((y - t) * (y - t));
  }
  double value_and_gradient(sg::Context& context, float const& y, float const& t, double scale,
                            float& dy) const {
    dy = static_cast<float>(scale) * 2 * (y - t);
    return value(context, y, t);
  }
};

using Batch = sg::Batch<float, float>;

inline Batch batch(int microbatches, int step = 0) {
  Batch result;
  for (int m = 0; m < microbatches; ++m) {
    result.inputs.push_back(
        small_model::number(11, static_cast<std::uint64_t>(step), static_cast<std::uint64_t>(m)));
    result.targets.push_back(
        small_model::number(12, static_cast<std::uint64_t>(step), static_cast<std::uint64_t>(m)));
  }
  return result;
}

inline constexpr int layers = 4;

inline sg::optimizer::Sgd optimizer() { return {.rate = 0.1, .momentum = 0.9}; }

/// Four stages of one layer each.
template <class Device>
auto pipeline(Device device, Hook hook, Made schedule = small_model::made(sg::schedule::OneFOneB{}),
              sg::Options options = {}) {
  return sg::Pipeline{Layer{hook}, Layer{hook, 0.8F}, Layer{hook, 0.7F}, Layer{hook, 0.6F}}.with(
      std::move(device), std::move(schedule), Loss{hook}, optimizer(), options);
}

/// Parameters of an undisturbed run after each of `steps` steps; the first entry is the start.
inline std::vector<std::vector<std::byte>> undisturbed(int microbatches, int steps) {
  auto const hook = make_hook();
  auto one = sg::Pipeline{Layer{hook}, Layer{hook, 0.8F}, Layer{hook, 0.7F}, Layer{hook, 0.6F}}
                 .on_one_device(Loss{hook}, optimizer());
  std::vector<std::vector<std::byte>> course{bits(one)};
  for (int s = 0; s < steps; ++s) {
    one.step(batch(microbatches, s));
    course.push_back(bits(one));
  }
  return course;
}

/// Every call of a training step.
inline std::vector<Call> calls(int microbatches) {
  std::vector<Call> all;
  for (int m = 0; m < microbatches; ++m) {
    for (int l = 0; l < layers; ++l)
      for (Function const what : {Function::forward, Function::input, Function::weight})
        all.push_back({what, l, m});
    all.push_back({Function::loss, layers - 1, m});
  }
  return all;
}

struct Trapped : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace trap_model
