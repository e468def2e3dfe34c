// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The small model for several GPUs: values are tensors of device memory, whose shape is
/// known when a stage is called, and kernels carry out the host's layers.

#include <atomic>
#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include <stagger/cuda/gpus.hpp>

#include "cuda/enqueued_model.hpp"

namespace gpus_model {

namespace sg = stagger;
namespace si = cuda_stand_in;
using namespace small_model;
using enqueued_model::end_left_behind;
using enqueued_model::hold_from;
using enqueued_model::kernels;
using enqueued_model::launch;
using enqueued_model::Launch;
using enqueued_model::LetGo;

using Values = sg::cuda::Tensor<float>;  // [rows][width]

/// What stands on a GPU for a value of the host's; tokens stay with the batch.
template <class H> using There = std::conditional_t<std::is_same_v<H, Tokens>, Tokens, Values>;

/// Kernels that were given memory of a GPU other than theirs.
inline std::atomic<int> astray{0};

/// Memory of a value, by address, as a kernel is given it.
struct Bare {
  float* data;
  std::size_t rows;
};
inline Bare bare(Values const& value) {
  return {const_cast<float*>(value.data()), value.extent(0)};
}
inline Tokens const* bare(Tokens const& value) { return &value; }
inline void note_home(Bare value, int gpu) {
  if (value.rows != 0 && si::device_of(value.data) != gpu) ++astray;
}
inline void note_home(Tokens const*, int) {}

inline void read(Bare from, Matrix& to) {
  to.resize({from.rows, width});
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = from.data[i];
}
inline void read(Bare from, Panel& to) {
  to.rows = from.rows;
  for (std::size_t i = 0; i < from.rows * width; ++i) to.values[i] = from.data[i];
}
inline void read(Tokens const* from, Tokens& to) { to = *from; }
inline void write(Matrix const& from, Bare to) {
  for (std::size_t i = 0; i < from.size(); ++i) to.data[i] = from[i];
}
inline void write(Panel const& from, Bare to) {
  for (std::size_t i = 0; i < from.rows * width; ++i) to.data[i] = from.values[i];
}
inline void write(Tokens const&, Tokens const*) {}

inline std::size_t rows_of(Values const& x) { return x.extent(0); }
inline std::size_t rows_of(Tokens const& x) { return x.size(); }

template <class L> class OnGpu {
  using X = typename L::Input;
  using Y = typename L::Output;

 public:
  using Input = There<X>;
  using Output = There<Y>;
  using Saved = sg::SavedOf<L>;

  explicit OnGpu(L layer = L{}) : layer_(std::move(layer)) {}

  auto parameters()
    requires sg::HasParameters<L>
  {
    return layer_.parameters();
  }

  void forward(sg::Context& context, Input const& x, Output& y, Saved& saved) {
    y.resize({rows_of(x), width});
    enqueue(
        context,
        [this, x = bare(x), y = bare(y), &saved](sg::Context& c) {
          X own_x;
          Y own_y;
          read(x, own_x);
          layer_.forward(c, own_x, own_y, saved);
          write(own_y, y);
        },
        bare(x), bare(y));
  }
  void backward(sg::Context& context, Input const& x, Output const& dy, Input& dx, Saved& saved)
    requires sg::HasBackward<L>
  {
    shape(dx, x);
    enqueue(
        context,
        [this, x = bare(x), dy = bare(dy), dx = bare(dx), &saved](sg::Context& c) {
          X own_x, own_dx;
          Y own_dy;
          read(x, own_x);
          read(dy, own_dy);
          layer_.backward(c, own_x, own_dy, own_dx, saved);
          write(own_dx, dx);
        },
        bare(x), bare(dy));
  }
  void backward_input(sg::Context& context, Input const& x, Output const& dy, Input& dx,
                      Saved& saved)
    requires sg::HasBackwardInput<L>
  {
    shape(dx, x);
    enqueue(
        context,
        [this, x = bare(x), dy = bare(dy), dx = bare(dx), &saved](sg::Context& c) {
          X own_x, own_dx;
          Y own_dy;
          read(x, own_x);
          read(dy, own_dy);
          layer_.backward_input(c, own_x, own_dy, own_dx, saved);
          write(own_dx, dx);
        },
        bare(x), bare(dy));
  }
  void backward_weight(sg::Context& context, Input const& x, Output const& dy, Saved& saved)
    requires sg::HasBackwardWeight<L>
  {
    enqueue(
        context,
        [this, x = bare(x), dy = bare(dy), &saved](sg::Context& c) {
          X own_x;
          Y own_dy;
          read(x, own_x);
          read(dy, own_dy);
          layer_.backward_weight(c, own_x, own_dy, saved);
        },
        bare(x), bare(dy));
  }

 private:
  static void shape(Values& dx, Values const& x) { dx.resize({rows_of(x), width}); }
  static void shape(Tokens&, Tokens const&) {}

  /// A kernel gets addresses now, and the numbers of its step when it runs.
  template <class Body, class... Bares>
  void enqueue(sg::Context& context, Body body, Bares... memory) {
    int gpu = -1;
    sg::cuda::check(cudaGetDevice(&gpu), "find the current GPU");
    (note_home(memory, gpu), ...);
    std::vector<sg::ParameterView> views;
    if constexpr (sg::HasParameters<L>)
      std::apply(
          [&](auto&... p) {
            (views.push_back({const_cast<void*>(static_cast<void const*>(context[p].data())),
                              context.gradient(p).data(), p.size()}),
             ...);
          },
          layer_.parameters());
    for (auto const& view : views)
      if (si::device_of(view.value) != gpu || si::device_of(view.gradient) != gpu) ++astray;
    auto const kernel = [body, views, numbers = sg::cuda::step_numbers(), layer = context.layer(),
                         microbatch = context.microbatch(), training = context.training()] {
      if (!enqueued_model::pass(numbers->steps)) return;
      sg::Context own;
      own.begin_step(numbers->steps, numbers->seed, training);
      own.begin_action(views.data(), layer, microbatch);
      body(own);
    };
    sg::cuda::check(launch(sg::cuda::stream(), kernel), "launch a kernel");
  }

  L layer_;
};

struct LossOnGpu {
  using policy_tag = sg::LossTag;
  using Target = Loss::Target;
  [[nodiscard]] double terms(Target const& target) const { return Loss{}.terms(target); }
  double value(sg::Context& context, Values const& y, Target const& target) const {
    return enqueue(context, [y = bare(y), &target](sg::Context& c) {
      Matrix own_y;
      read(y, own_y);
      return Loss{}.value(c, own_y, target);
    });
  }
  double value_and_gradient(sg::Context& context, Values const& y, Target const& target,
                            double scale, Values& dy) const {
    dy.resize({rows_of(y), width});
    return enqueue(context, [y = bare(y), &target, scale, dy = bare(dy)](sg::Context& c) {
      Matrix own_y, own_dy;
      read(y, own_y);
      double const loss = Loss{}.value_and_gradient(c, own_y, target, scale, own_dy);
      write(own_dy, dy);
      return loss;
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
    return 0;  // ignored
  }
};

inline auto layers_on_gpus() {
  return sg::Sequential{OnGpu<Embedding>{}, OnGpu<Dense>{}, OnGpu<Curve>{},        OnGpu<Squash>{},
                        OnGpu<Dropout>{},   OnGpu<Norm>{},  OnGpu<Dense>{Dense{7}}};
}

inline sg::cuda::Gpus on_gpus(std::vector<int> devices) {
  sg::cuda::Gpus gpus;
  gpus.devices = std::move(devices);
  gpus.kernels = &kernels;
  return gpus;
}

/// The whole model over GPUs, cut, with a schedule. Its rule is the host's.
template <class Gpus, class Rule>
auto over(Gpus gpus, Rule rule, std::vector<int> cuts, Made schedule, sg::Options options) {
  options.seed = run_seed;
  return sg::Pipeline{layers_on_gpus()}.with(
      sg::partition::Cuts{std::move(cuts)}, std::move(schedule), LossOnGpu{},
      sg::cuda::Enqueued<Rule, Launch>{rule}, std::move(gpus), options);
}

}  // namespace gpus_model
