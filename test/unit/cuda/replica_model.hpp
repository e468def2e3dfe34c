// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The model that is split by rows, on memory of GPUs: each function of a layer becomes one
/// kernel of the stand-in, which carries out the host's layer on its replica's rows.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <stagger/collective/all_reduce.hpp>
#include <stagger/collective/grouping.hpp>
#include <stagger/engine/replicas.hpp>

#include "cuda/enqueued_model.hpp"
#include "engine/row_oracle.hpp"

namespace replica_model {

namespace sg = stagger;
namespace si = cuda_stand_in;
namespace grouping = sg::collective::grouping;
using namespace small_model;
using enqueued_model::kernels;
using enqueued_model::launch;
using enqueued_model::Launch;

using Values = sg::cuda::Tensor<float>;        // [rows][width]
using Words = sg::cuda::Tensor<std::int32_t>;  // [rows][2]
template <class H> using There = std::conditional_t<std::is_same_v<H, Tokens>, Words, Values>;

/// Kernels that were given memory of a GPU other than theirs.
inline std::atomic<int> astray{0};

/// Memory of a value, by address, as a kernel is given it.
template <class T> struct Bare {
  T* data;
  std::size_t rows, columns;
};
template <class T> Bare<T> bare(sg::cuda::Tensor<T> const& value) {
  return {const_cast<T*>(value.data()), value.extent(0), value.extent(1)};
}
template <class T> sg::Tensor<T> read(Bare<T> from) {
  sg::Tensor<T> to({from.rows, from.columns});
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = from.data[i];
  return to;
}
template <class T> void write(sg::Tensor<T> const& from, Bare<T> to) {
  for (std::size_t i = 0; i < from.size(); ++i) to.data[i] = from[i];
}

template <class L> class OnDevice {
  using X = typename L::Input;
  using Y = typename L::Output;

 public:
  using Input = There<X>;
  using Output = There<Y>;
  using Saved = sg::SavedOf<L>;

  explicit OnDevice(L layer = L{}) : layer_(std::move(layer)) {}

  auto parameters()
    requires sg::HasParameters<L>
  {
    return layer_.parameters();
  }

  void forward(sg::Context& context, Input const& x, Output& y, Saved& saved) {
    y.resize({x.size() / (std::is_same_v<X, Tokens> ? 1 : width), width});
    enqueue(
        context,
        [this, x = bare(x), y = bare(y), &saved](sg::Context& c) {
          Y own;
          layer_.forward(c, read(x), own, saved);
          write(own, y);
        },
        x, y);
  }
  void backward(sg::Context& context, Input const& x, Output const& dy, Input& dx, Saved& saved)
    requires sg::HasBackward<L>
  {
    dx.resize_like(x);
    enqueue(
        context,
        [this, x = bare(x), dy = bare(dy), dx = bare(dx), &saved](sg::Context& c) {
          X own;
          layer_.backward(c, read(x), read(dy), own, saved);
          write(own, dx);
        },
        x, dy);
  }
  void backward_input(sg::Context& context, Input const& x, Output const& dy, Input& dx,
                      Saved& saved)
    requires sg::HasBackwardInput<L>
  {
    dx.resize_like(x);
    enqueue(
        context,
        [this, x = bare(x), dy = bare(dy), dx = bare(dx), &saved](sg::Context& c) {
          X own;
          layer_.backward_input(c, read(x), read(dy), own, saved);
          write(own, dx);
        },
        x, dy);
  }
  void backward_weight(sg::Context& context, Input const& x, Output const& dy, Saved& saved)
    requires sg::HasBackwardWeight<L>
  {
    enqueue(
        context,
        [this, x = bare(x), dy = bare(dy), &saved](sg::Context& c) {
          layer_.backward_weight(c, read(x), read(dy), saved);
        },
        x, dy);
  }

 private:
  /// A kernel gets addresses now, and the numbers of its step when it runs.
  template <class Body, class A, class B>
  void enqueue(sg::Context& context, Body body, A const& a, B const& b) {
    int gpu = -1;
    sg::cuda::check(cudaGetDevice(&gpu), "find the current GPU");
    bool const of_batch = std::is_same_v<A, Words>;  // which may lie anywhere
    if ((!of_batch && si::device_of(a.data()) != gpu) || si::device_of(b.data()) != gpu) ++astray;
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
    auto const microbatch = context.microbatch();
    std::vector<std::size_t> const first_rows(static_cast<std::size_t>(microbatch) + 1,
                                              context.first_row());
    auto const kernel = [body, views, first_rows, microbatch, numbers = sg::cuda::step_numbers(),
                         layer = context.layer(), training = context.training()] {
      sg::Context own;
      own.begin_step(numbers->steps, numbers->seed, training);
      own.share_rows(first_rows.data());
      own.begin_action(views.data(), layer, microbatch);
      body(own);
    };
    sg::cuda::check(launch(sg::cuda::stream(), kernel), "launch a kernel");
  }

  L layer_;
};

struct LossThere {
  using policy_tag = sg::LossTag;
  using Target = Words;
  [[nodiscard]] double terms(Target const& target) const {
    return static_cast<double>(target.size());
  }
  double value(sg::Context& context, Values const& y, Target const& target) const {
    return enqueue(context, [y = bare(y), target = bare(target)](sg::Context& c) {
      return Loss{}.value(c, read(y), read(target));
    });
  }
  double value_and_gradient(sg::Context& context, Values const& y, Target const& target,
                            double scale, Values& dy) const {
    dy.resize_like(y);
    return enqueue(
        context, [y = bare(y), target = bare(target), scale, dy = bare(dy)](sg::Context& c) {
          Matrix own;
          double const loss = Loss{}.value_and_gradient(c, read(y), read(target), scale, own);
          write(own, dy);
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
    return std::numeric_limits<double>::quiet_NaN();  // ignored
  }
};

using BatchThere = sg::Batch<Words, Words>;

/// The same minibatch in memory of the current GPU.
inline Words upload(Tokens const& from) {
  Words to({from.extent(0), from.extent(1)});
  for (std::size_t i = 0; i < from.size(); ++i) to.data()[i] = from[i];
  return to;
}
inline BatchThere upload(Batch const& from) {
  BatchThere to;
  for (auto const& x : from.inputs) to.inputs.push_back(upload(x));
  for (auto const& t : from.targets) to.targets.push_back(upload(t));
  return to;
}

inline auto layers_there() {
  return sg::Sequential{OnDevice<Embedding>{},     OnDevice<Dense>{},
                        OnDevice<Curve>{},         OnDevice<row_model::RowDropout>{},
                        OnDevice<Dense>{Dense{5}}, OnDevice<Curve>{},
                        OnDevice<Dense>{Dense{7}}};
}

/// The whole model on GPUs, cut, with a schedule and replicas. Its rule is the host's.
template <class Device, class AllReduce>
auto there(Device device, AllReduce policy, std::vector<int> cuts, Made schedule,
           sg::Options options) {
  options.seed = run_seed;
  return sg::Pipeline{layers_there()}.with(
      sg::partition::Cuts{std::move(cuts)}, std::move(schedule), LossThere{},
      sg::cuda::Enqueued<sg::optimizer::AdamW, Launch>{optimizer()}, std::move(device), policy,
      options);
}

}  // namespace replica_model
