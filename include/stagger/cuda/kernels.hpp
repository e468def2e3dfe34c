// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The kernels that change parameters on a GPU, for the optimizer and for gradients, and the
///         numbers in device memory that they read. A program brings its own, or takes those of
///         <stagger/cuda/parameter_kernels.cuh>, which one of its .cu files includes.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <stagger/cuda/memory.hpp>
#include <stagger/model/context.hpp>
#include <stagger/model/optimizer.hpp>

namespace stagger::cuda {

/// The factor by which gradients are multiplied, and their norm, in device memory.
struct GradientScale {
  double factor = 1;
  double norm = 0;
};

/// The numbers of the current step, in device memory. They are written before each iteration, so
/// that a replayed graph uses those of its own step.
struct StepNumbers {
  std::int64_t steps = 0;  ///< optimizer steps taken before this one
  std::uint64_t seed = 0;  ///< of the run
};

/// Kernels for gradients, each a function that launches one on a stream and returns CUDA's result.
/// They are needed if gradients are clipped, or if a stage has two owners or replicas.
struct ParameterKernels {
  /// sum[i] += more[i] for i < size. For replicas it is called for a part of a parameter at a time,
  /// each part in the order of replicas.
  cudaError_t (*add)(ElementType, void* sum, void const* more, std::size_t size,
                     cudaStream_t) = nullptr;
  /// *sum = the sum of gradient[i]^2 for i < size.
  /// @param scratch  [scratch_size] in device memory; nothing else on the GPU uses it meanwhile
  cudaError_t (*sum_squares)(ElementType, void const* gradient, std::size_t size, double* sum,
                             double* scratch, cudaStream_t) = nullptr;
  /// norm = root of the sum of sums[i] for i < count, in this order; factor = clip_norm / norm if
  /// norm > clip_norm, else 1.
  cudaError_t (*scale)(double const* sums, std::size_t count, double clip_norm, GradientScale*,
                       cudaStream_t) = nullptr;
  std::size_t scratch_size = 0;  ///< numbers of scratch memory that sum_squares needs
};

/// The arguments of an optimizer's kernel, for one parameter. All pointers are to device memory.
template <class Rule, class T> struct Update {
  OptimizerView<T> view;
  Rule const* rule = nullptr;  ///< the optimizer's numbers in the current step
  GradientScale const* scale = nullptr;
  StepNumbers const* numbers = nullptr;
  std::int64_t number = 1;  ///< numbers->steps + number is the optimizer step, counted from 1
};

namespace detail {

/// A rank's numbers while its work is enqueued.
struct StepPlace {
  StepNumbers const* numbers = nullptr;  // of the device, as the next three
  void const* optimizer = nullptr;
  GradientScale* scale = nullptr;
  double* losses = nullptr;   // [microbatches] of the replica
  double* scratch = nullptr;  // [kernels->scratch_size]
  std::int64_t steps = 0;     // numbers->steps while the work is enqueued
  ParameterKernels const* kernels = nullptr;
  cudaError_t* refused = nullptr;  // the error of a call that CUDA refused after the step was
                                   // decided
  bool* loss_on_device = nullptr;
};

/// Makes a call on which a decided step depends; repeats it once if it is refused.
template <class Call> void insist(Call call) noexcept {
  cudaError_t result = call();
  if (result == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  result = call();
  if (result != cudaSuccess && place.step != nullptr) *place.step->refused = result;
}

}  // namespace detail

/// Step and seed in device memory, for kernels that draw random numbers: a replayed graph repeats
/// the arguments that a kernel was given by value.
/// @pre called by a stage or a loss whose work is enqueued
[[nodiscard]] inline StepNumbers const* step_numbers() noexcept {
  return detail::place.step->numbers;
}

/// Where the kernel of a loss adds, or writes, the sum over the terms of the current microbatch: a
/// double in device memory, 0 before. The return value of the loss's function is then ignored.
/// @pre called by a loss whose work is enqueued
[[nodiscard]] inline double* loss_place(Context const& context) noexcept {
  *detail::place.step->loss_on_device = true;
  return detail::place.step->losses + context.microbatch();
}

namespace detail {

/// How the library's kernels run; <stagger/cuda/parameter_kernels.cuh> defines it.
struct OnGpu;

/// The library's kernels, which <stagger/cuda/parameter_kernels.cuh> defines and instantiates.
template <class Run> struct LibraryKernels {
  static constexpr std::size_t most_parts = 1024;  // of a gradient whose squares are added up

  static cudaError_t add(ElementType type, void* sum, void const* more, std::size_t size,
                         cudaStream_t stream);
  static cudaError_t sum_squares(ElementType type, void const* gradient, std::size_t size,
                                 double* sum, double* scratch, cudaStream_t stream);
  static cudaError_t scale(double const* sums, std::size_t count, double clip_norm,
                           GradientScale* scale, cudaStream_t stream);
  template <class Rule, class T>
  static cudaError_t update(Update<Rule, T> const& what, cudaStream_t stream);
};

}  // namespace detail

/// The library's kernels, for `Gpus::kernels`. A program that names them, or the LaunchUpdate below,
/// has one .cu file with this line; otherwise it cannot be linked:
/// @code
///     #include <stagger/cuda/parameter_kernels.cuh>
/// @endcode
inline constexpr ParameterKernels parameter_kernels{
    &detail::LibraryKernels<detail::OnGpu>::add,
    &detail::LibraryKernels<detail::OnGpu>::sum_squares,
    &detail::LibraryKernels<detail::OnGpu>::scale,
    detail::LibraryKernels<detail::OnGpu>::most_parts,
};

/// The library's kernels of optimizer::Sgd and optimizer::AdamW.
struct LaunchUpdate {
  template <class Rule, class T>
  cudaError_t operator()(Update<Rule, T> const& what, cudaStream_t stream) const {
    static_assert(std::same_as<Rule, optimizer::Sgd> || std::same_as<Rule, optimizer::AdamW>,
                  "stagger: the library has kernels of optimizer::Sgd and optimizer::AdamW; give "
                  "cuda::Enqueued a Launch of your own for another rule");
    return detail::LibraryKernels<detail::OnGpu>::update(what, stream);
  }
};

/// An optimizer whose update is a kernel. It contains the numbers of its rule, which may be changed
/// between steps.
///
/// @code
///     cuda::Enqueued<optimizer::AdamW> adam{{.rate = 1e-3}};   // with the library's kernel
///
///     struct Launch {   // of your own; in a .cu file: lion_kernel<<<..., stream>>>(update);
///       cudaError_t operator()(cuda::Update<Lion, float> const&, cudaStream_t) const;
///       cudaError_t operator()(cuda::Update<Lion, double> const&, cudaStream_t) const;
///     };
///     cuda::Enqueued<Lion, Launch> lion{{.rate = 1e-4}};
/// @endcode
///
/// @tparam Rule    trivially copyable, with `states`; such as optimizer::AdamW
/// @tparam Launch  launches the kernel for one parameter and returns CUDA's result
template <class Rule, class Launch = LaunchUpdate> struct Enqueued : Rule {
  static_assert(std::is_trivially_copyable_v<Rule> && std::is_empty_v<Launch>,
                "stagger: an enqueued optimizer is copied to the GPU: its rule must be trivially "
                "copyable, and its Launch without members");
  using policy_tag = OptimizerTag;
  static constexpr bool enqueues = true;

  template <class T>
  void update(OptimizerView<T> const& view, double, std::int64_t number) const noexcept {
    if (view.size == 0) return;
    auto const& step = *detail::place.step;
    Update<Rule, T> const what{view, static_cast<Rule const*>(step.optimizer), step.scale,
                               step.numbers, number - step.steps};
    detail::insist([&] { return Launch{}(what, stream()); });
  }
};

}  // namespace stagger::cuda
