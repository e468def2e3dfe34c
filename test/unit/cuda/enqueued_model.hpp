// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The small model with stages that enqueue: each function of a layer becomes one kernel of
/// the stand-in, which carries out the host's layer on memory of the GPU.

#include <atomic>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/cuda/gpus.hpp>

#include "cuda_stand_in/stand_in.hpp"
#include "engine/typed_oracle.hpp"

namespace enqueued_model {

namespace sg = stagger;
namespace si = cuda_stand_in;
using namespace small_model;

inline cudaError_t answer(int code) { return static_cast<cudaError_t>(code); }
template <class Kernel> cudaError_t launch(cudaStream_t stream, Kernel kernel) {
  return answer(si::launch(stream, std::move(kernel)));
}

/// The device holds this step and those after it back, at their first kernel, until it is raised.
inline std::atomic<std::int64_t> first_held{std::numeric_limits<std::int64_t>::max()};

/// @return whether the kernel may do its work: what was left behind has nothing to work on
inline bool pass(std::int64_t step) {
  for (auto held = first_held.load(); step >= held; held = first_held.load()) {
    if (held < 0) return false;
    first_held.wait(held);
  }
  return true;
}
inline void hold_from(std::int64_t step) {
  first_held.store(step);
  first_held.notify_all();
}
/// Ends what a pipeline that is gone has left on a device that hung.
inline void end_left_behind() {
  si::lose_device(cudaErrorLaunchTimeout);
  hold_from(-1);
  si::reset();
  hold_from(std::numeric_limits<std::int64_t>::max());
}
/// Lets everything go when a test ends.
struct LetGo {
  ~LetGo() { hold_from(std::numeric_limits<std::int64_t>::max()); }
};

/// The n-th function of a layer from now on throws.
inline int throw_in = 0;
/// The n-th function of a layer from now on asks for the end of the step.
inline int stop_at = 0;
inline stagger::stop_source* stopped_by = nullptr;
inline void spring_traps() {
  if (throw_in > 0 && --throw_in == 0) throw std::runtime_error("trapped");
  if (stop_at > 0 && --stop_at == 0) stopped_by->request_stop();
}

template <class L> class OnDevice {
 public:
  using Input = typename L::Input;
  using Output = typename L::Output;
  using Saved = sg::SavedOf<L>;

  explicit OnDevice(L layer = L{}) : layer_(std::move(layer)) {}

  auto parameters()
    requires sg::HasParameters<L>
  {
    return layer_.parameters();
  }

  void forward(sg::Context& context, Input const& x, Output& y, Saved& saved) {
    enqueue(context, [this, &x, &y, &saved](sg::Context& c) { layer_.forward(c, x, y, saved); });
  }
  void backward(sg::Context& context, Input const& x, Output const& dy, Input& dx, Saved& saved)
    requires sg::HasBackward<L>
  {
    enqueue(context,
            [this, &x, &dy, &dx, &saved](sg::Context& c) { layer_.backward(c, x, dy, dx, saved); });
  }
  void backward_input(sg::Context& context, Input const& x, Output const& dy, Input& dx,
                      Saved& saved)
    requires sg::HasBackwardInput<L>
  {
    enqueue(context, [this, &x, &dy, &dx, &saved](sg::Context& c) {
      layer_.backward_input(c, x, dy, dx, saved);
    });
  }
  void backward_weight(sg::Context& context, Input const& x, Output const& dy, Saved& saved)
    requires sg::HasBackwardWeight<L>
  {
    enqueue(context,
            [this, &x, &dy, &saved](sg::Context& c) { layer_.backward_weight(c, x, dy, saved); });
  }

 private:
  /// A kernel gets addresses now, and the numbers of its step when it runs.
  template <class Body> void enqueue(sg::Context& context, Body body) {
    spring_traps();
    std::vector<sg::ParameterView> views;
    if constexpr (sg::HasParameters<L>)
      std::apply(
          [&](auto&... p) {
            (views.push_back({const_cast<void*>(static_cast<void const*>(context[p].data())),
                              context.gradient(p).data(), p.size()}),
             ...);
          },
          layer_.parameters());
    auto const kernel = [body, views, numbers = sg::cuda::step_numbers(), layer = context.layer(),
                         microbatch = context.microbatch(), training = context.training()] {
      if (!pass(numbers->steps)) return;
      sg::Context own;
      own.begin_step(numbers->steps, numbers->seed, training);
      own.begin_action(views.data(), layer, microbatch);
      body(own);
    };
    sg::cuda::check(launch(sg::cuda::stream(), kernel), "launch a kernel");
  }

  L layer_;
};

struct EnqueuedLoss {
  using policy_tag = sg::LossTag;
  using Target = Loss::Target;
  [[nodiscard]] double terms(Target const& target) const { return Loss{}.terms(target); }
  double value(sg::Context& context, Matrix const& y, Target const& target) const {
    return enqueue(context, [&y, &target](sg::Context& c) { return Loss{}.value(c, y, target); });
  }
  double value_and_gradient(sg::Context& context, Matrix const& y, Target const& target,
                            double scale, Matrix& dy) const {
    return enqueue(context, [&y, &target, scale, &dy](sg::Context& c) {
      return Loss{}.value_and_gradient(c, y, target, scale, dy);
    });
  }

 private:
  template <class Body> static double enqueue(sg::Context& context, Body body) {
    double* const place = sg::cuda::loss_place(context);
    sg::cuda::check(launch(sg::cuda::stream(),
                           [body, place] {
                             sg::Context own;
                             *place += body(own);
                           }),
                    "launch a kernel");
    return std::numeric_limits<double>::quiet_NaN();  // ignored
  }
};

/// While on, the device is lost in the next update.
inline std::atomic<bool> lose_in_update{false};
/// The device is lost in the update of this step, counted from 0.
inline std::atomic<std::int64_t> lost_step{-1};

/// Any rule as a kernel.
struct Launch {
  template <class Rule, class T>
  cudaError_t operator()(sg::cuda::Update<Rule, T> const& update, cudaStream_t stream) const {
    return launch(stream, [update] {
      if (lose_in_update.exchange(false) || update.numbers->steps == lost_step)
        return si::lose_device(cudaErrorIllegalAddress);
      update.rule->update(update.view, update.scale->factor, update.numbers->steps + update.number);
    });
  }
};

template <class T> double sum_squares(T const* gradient, std::size_t size) {
  double sum = 0;
  for (std::size_t i = 0; i < size; ++i)
    sum += static_cast<double>(gradient[i]) * static_cast<double>(gradient[i]);
  return sum;
}

inline constexpr sg::cuda::ParameterKernels kernels{
    .add =
        [](sg::ElementType type, void* sum, void const* more, std::size_t size,
           cudaStream_t stream) {
          return launch(stream, [type, sum, more, size] {
            auto const add = [size](auto* to, auto const* from) {
              for (std::size_t i = 0; i < size; ++i) to[i] += from[i];
            };
            if (type == sg::ElementType::f32)
              add(static_cast<float*>(sum), static_cast<float const*>(more));
            else
              add(static_cast<double*>(sum), static_cast<double const*>(more));
          });
        },
    .sum_squares =
        [](sg::ElementType type, void const* gradient, std::size_t size, double* sum,
           cudaStream_t stream) {
          return launch(stream, [type, gradient, size, sum] {
            *sum = type == sg::ElementType::f32
                       ? sum_squares(static_cast<float const*>(gradient), size)
                       : sum_squares(static_cast<double const*>(gradient), size);
          });
        },
    .scale =
        [](double const* sums, std::size_t count, double clip_norm, sg::cuda::GradientScale* scale,
           cudaStream_t stream) {
          return launch(stream, [sums, count, clip_norm, scale] {
            double sum = 0;
            for (std::size_t i = 0; i < count; ++i) sum += sums[i];
            scale->norm = std::sqrt(sum);
            scale->factor = scale->norm > clip_norm ? clip_norm / scale->norm : 1;
          });
        }};

inline auto enqueued_layers() {
  return sg::Sequential{OnDevice<Embedding>{},    OnDevice<Dense>{},   OnDevice<Curve>{},
                        OnDevice<Squash>{},       OnDevice<Dropout>{}, OnDevice<Norm>{},
                        OnDevice<Dense>{Dense{7}}};
}

inline sg::cuda::Gpus on_device(bool capture = false, sg::cuda::GraphCounts* counts = nullptr) {
  sg::cuda::Gpus device;
  device.devices = {0};
  device.capture = capture;
  device.counts = counts;
  device.kernels = &kernels;
  return device;
}

/// The whole model on a GPU, cut, with a schedule. Its rule is the host's.
template <class Rule>
auto enqueued(sg::cuda::Gpus device, Rule rule, std::vector<int> cuts, Made schedule,
              sg::Options options) {
  options.seed = run_seed;
  return sg::Pipeline{enqueued_layers()}.with(
      sg::partition::Cuts{std::move(cuts)}, std::move(schedule), EnqueuedLoss{},
      sg::cuda::Enqueued<Rule, Launch>{rule}, std::move(device), options);
}

}  // namespace enqueued_model
