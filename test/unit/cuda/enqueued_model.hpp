// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Layers that enqueue: each function of a layer of the host's becomes one kernel of the
/// stand-in, which carries it out on memory of the GPU.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <stagger/cuda/gpus.hpp>
#include <stagger/cuda/tensor.hpp>

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

/// Kernels that were given memory of a GPU other than theirs.
inline std::atomic<int> astray{0};

/// Where the values of the model lie. Here: in objects of the host, which kernels of one GPU reach.
struct InHostObjects {
  template <class H> using Value = H;
};
/// In tensors of the GPU, whose shape is known when a stage is called; tokens stay with the batch.
struct InTensors {
  template <class H>
  using Value = std::conditional_t<std::is_same_v<H, Tokens>, Tokens, sg::cuda::Tensor<float>>;
};
/// In tensors of the GPU, tokens as well, so that replicas can be given rows of all of them.
struct AllInTensors {
  template <class H>
  using Value =
      sg::cuda::Tensor<std::conditional_t<std::is_same_v<H, Tokens>, std::int32_t, float>>;
};

/// A value as a kernel is given it: the address of an object of the host, or of a tensor's memory.
template <class T> struct Bare {
  T* data;
  std::size_t rows, columns;
};
template <class H> H* bare(H const& value) { return const_cast<H*>(&value); }
template <class T> Bare<T> bare(sg::cuda::Tensor<T> const& value) {
  return {const_cast<T*>(value.data()), value.extent(0), value.extent(1)};
}

/// What a kernel reads: the object itself, or a copy of the tensor as a value of the host's.
template <class H> H const& load(H const* from) { return *from; }
template <class H, class T> H load(Bare<T> from) {
  H to;
  if constexpr (std::is_same_v<H, Panel>) {
    to.rows = from.rows;
    std::copy_n(from.data, from.rows * width, to.values.begin());
  } else {
    to.resize({from.rows, from.columns});
    std::copy_n(from.data, to.size(), to.data());
  }
  return to;
}
/// Has `body` write a value of the host's, and puts it where the kernel writes.
template <class H, class Body> void store(H* to, Body body) { body(*to); }
template <class H, class T, class Body> void store(Bare<T> to, Body body) {
  H own;
  body(own);
  if (to.data == nullptr) return;  // a kernel for no element
  if constexpr (std::is_same_v<H, Panel>)
    std::copy_n(own.values.begin(), own.rows * width, to.data);
  else
    std::copy_n(own.data(), own.size(), to.data);
}

/// The n-th value from now on is not sized.
inline int forget_in = 0;
/// The shape of a value before its kernel runs; objects of the host get theirs from the kernel.
template <class H> void shape(H&, std::size_t) {}
inline void shape(sg::cuda::Tensor<float>& value, std::size_t rows) {
  if (forget_in == 0 || --forget_in != 0) value.resize({rows, width});
}
template <class H> std::size_t rows_of(H const&) { return 0; }
inline std::size_t rows_of(Tokens const& x) { return x.size(); }
inline std::size_t rows_of(sg::cuda::Tensor<std::int32_t> const& x) { return x.size(); }
inline std::size_t rows_of(sg::cuda::Tensor<float> const& x) { return x.extent(0); }

template <class H> void note_gpu(H const*, int) {}
template <class T> void note_gpu(Bare<T> value, int gpu) {
  // Tokens are of the batch, which may lie anywhere.
  if (!std::is_same_v<T, std::int32_t> && value.rows != 0 && si::device_of(value.data) != gpu)
    ++astray;
}

/// A layer of the host's as kernels.
template <class L, class Place = InHostObjects> class OnDevice {
  using X = typename L::Input;
  using Y = typename L::Output;

 public:
  using Input = typename Place::template Value<X>;
  using Output = typename Place::template Value<Y>;
  using Saved = sg::SavedOf<L>;

  explicit OnDevice(L layer = L{}) : layer_(std::move(layer)) {}

  auto parameters()
    requires sg::HasParameters<L>
  {
    return layer_.parameters();
  }

  void forward(sg::Context& context, Input const& x, Output& y, Saved& saved) {
    shape(y, rows_of(x));
    enqueue(
        context,
        [this, x = bare(x), y = bare(y), &saved](sg::Context& c) {
          store<Y>(y, [&](Y& own) { layer_.forward(c, load<X>(x), own, saved); });
        },
        bare(x), bare(y));
  }
  void backward(sg::Context& context, Input const& x, Output const& dy, Input& dx, Saved& saved)
    requires sg::HasBackward<L>
  {
    shape(dx, rows_of(x));
    enqueue(
        context,
        [this, x = bare(x), dy = bare(dy), dx = bare(dx), &saved](sg::Context& c) {
          store<X>(dx, [&](X& own) { layer_.backward(c, load<X>(x), load<Y>(dy), own, saved); });
        },
        bare(x), bare(dy), bare(dx));
  }
  void backward_input(sg::Context& context, Input const& x, Output const& dy, Input& dx,
                      Saved& saved)
    requires sg::HasBackwardInput<L>
  {
    shape(dx, rows_of(x));
    enqueue(
        context,
        [this, x = bare(x), dy = bare(dy), dx = bare(dx), &saved](sg::Context& c) {
          store<X>(dx,
                   [&](X& own) { layer_.backward_input(c, load<X>(x), load<Y>(dy), own, saved); });
        },
        bare(x), bare(dy), bare(dx));
  }
  void backward_weight(sg::Context& context, Input const& x, Output const& dy, Saved& saved)
    requires sg::HasBackwardWeight<L>
  {
    enqueue(
        context,
        [this, x = bare(x), dy = bare(dy), &saved](sg::Context& c) {
          layer_.backward_weight(c, load<X>(x), load<Y>(dy), saved);
        },
        bare(x), bare(dy));
  }

 private:
  /// A kernel gets addresses now, and the numbers of its step when it runs.
  template <class Body, class... Bares>
  void enqueue(sg::Context& context, Body body, Bares... memory) {
    spring_traps();
    int gpu = -1;
    sg::cuda::check(cudaGetDevice(&gpu), "find the current GPU");
    (note_gpu(memory, gpu), ...);
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
                         layer = context.layer(), training = context.training(),
                         minibatch = context.microbatches_per_minibatch()] {
      if (!pass(numbers->steps)) return;
      sg::Context own;
      own.begin_step(numbers->steps, numbers->seed, training, minibatch);
      own.set_first_rows(first_rows.data());
      own.begin_action(views.data(), layer, microbatch);
      body(own);
    };
    sg::cuda::check(launch(sg::cuda::stream(), kernel), "launch a kernel");
  }

  L layer_;
};

/// The host's loss as a kernel.
template <class Place = InHostObjects> struct LossOnDevice {
  using policy_tag = sg::LossTag;
  using Values = typename Place::template Value<Matrix>;
  using Target = typename Place::template Value<Loss::Target>;
  [[nodiscard]] double terms(Target const& target) const {
    return static_cast<double>(target.size());
  }
  double value(sg::Context& context, Values const& y, Target const& target) const {
    return enqueue(context, [y = bare(y), target = bare(target)](sg::Context& c) {
      return Loss{}.value(c, load<Matrix>(y), load<Loss::Target>(target));
    });
  }
  double value_and_gradient(sg::Context& context, Values const& y, Target const& target,
                            double scale, Values& dy) const {
    shape(dy, rows_of(y));
    return enqueue(context,
                   [y = bare(y), target = bare(target), scale, dy = bare(dy)](sg::Context& c) {
                     double loss = 0;
                     store<Matrix>(dy, [&](Matrix& own) {
                       loss = Loss{}.value_and_gradient(c, load<Matrix>(y),
                                                        load<Loss::Target>(target), scale, own);
                     });
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
using EnqueuedLoss = LossOnDevice<>;

/// While on, the device is lost in the next update.
inline std::atomic<bool> lose_in_update{false};
/// The device is lost in the update of this step, counted from 0.
inline std::atomic<std::int64_t> lost_step{-1};

/// The library's kernels, before which the device may be lost.
struct Launch {
  static constexpr bool asks_scale = true;
  static constexpr bool makes_changes = true;
  template <class Rule, class T>
  cudaError_t operator()(sg::cuda::Update<Rule, T> const& update, cudaStream_t stream) const {
    auto const result = launch(stream, [numbers = update.numbers] {
      if (lose_in_update.exchange(false) || numbers->steps == lost_step)
        si::lose_device(cudaErrorIllegalAddress);
    });
    return result != cudaSuccess ? result : sg::cuda::LaunchUpdate{}(update, stream);
  }
};

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
  device.kernels = &sg::cuda::parameter_kernels;
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
