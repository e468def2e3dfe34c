// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The kernels that change parameters on a GPU, for the optimizer and for gradients, and the
///         numbers in device memory that they read. A program brings its own, or takes those of
///         <stagger/cuda/parameter_kernels.cuh>, which one of its .cu files includes.

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <stagger/cuda/gradient_kernels.hpp>
#include <stagger/cuda/memory.hpp>
#include <stagger/model/context.hpp>
#include <stagger/model/optimizer.hpp>

#ifdef __CUDACC__
#define STAGGER_ANYWHERE __host__ __device__
#else
#define STAGGER_ANYWHERE
#endif

namespace stagger::cuda {

/// The numbers of the current step, in device memory. They are written before each iteration, so
/// that a replayed graph uses those of its own step.
struct StepNumbers {
  std::int64_t steps = 0;  ///< optimizer steps taken before this one
  std::uint64_t seed = 0;  ///< of the run
};

namespace detail {

/// What a rank remembers of steps whose gradients are not finite, in device memory. It begins anew
/// with each period, whose number the host raises.
struct NonFiniteMemory {
  std::int64_t period = 0;
  std::int64_t failed = 0;   // GradientScale::not_finite of the step that failed
  std::int64_t skipped = 0;  // steps since then that changed nothing, but for those of a failure
};

}  // namespace detail

/// What an update does with gradients, in device memory. The kernels `ParameterKernels::scale` and
/// `begin` call `find` and `correct`; the kernel of an optimizer asks `updates` and reads `factor`.
struct GradientScale {
  double factor = 1;  ///< by which gradients are multiplied
  double norm = 0;    ///< of all gradients

  /// Whether the step may change anything: false if a gradient is NaN or infinite, or if the step
  /// comes after one that failed for that reason and that the host has not seen yet.
  [[nodiscard]] STAGGER_ANYWHERE bool updates() const { return not_finite == 0; }

  /// Finds all of it. Called by one thread.
  /// @param sums  [count] sums of squares of the gradients of one parameter each
  STAGGER_ANYWHERE void find(double const* sums, std::size_t count, double clip_norm) {
    double sum = 0;
    std::int64_t found = 0;
    for (std::size_t i = 0; i < count; ++i) {
      sum += sums[i];
      if (!is_finite(sums[i])) found = static_cast<std::int64_t>(i) + 1;
    }
    norm = std::sqrt(sum);
    factor = norm > clip_norm ? clip_norm / norm : 1;
    if (memory == nullptr) return;
    if (memory->period != period) *memory = {period, 0, 0};
    if (found == 0 && !is_finite(sum)) found = static_cast<std::int64_t>(count) + 1;
    if (processes != 0 && sums[count] != static_cast<double>(processes * period)) found = unseen;
    not_finite = memory->failed != 0 ? -memory->failed : found;
    if (not_finite == 0 || memory->failed != 0) return;
    if (skips != 0 || found == unseen)
      ++memory->skipped;
    else
      memory->failed = found;
  }
  /// Subtracts steps that changed nothing, of which the host may not know. Called by one thread.
  STAGGER_ANYWHERE void correct(StepNumbers& numbers) const {
    if (memory != nullptr && memory->period == period) numbers.steps -= memory->skipped;
    if (processes != 0) *seen = static_cast<double>(period);
  }

  // What follows is for the library alone, which writes it before each iteration and then reads
  // `not_finite`.

  /// `not_finite` while some process has not seen yet that an earlier step failed.
  static constexpr std::int64_t unseen = -(std::int64_t{1} << 62U);
  /// 0: every gradient is finite. Above 0: 1 + the number of the last parameter of which the sum of
  /// squares is not; 1 + count where only the sum over all parameters is not. Below 0: minus what an
  /// earlier step of the period failed with.
  std::int64_t not_finite = 0;
  detail::NonFiniteMemory* memory = nullptr;  ///< null: nobody looks
  std::int64_t processes = 0;                 ///< that add up `seen`; 0: this one is alone
  double* seen = nullptr;   ///< sums[count]: the period that the host of each process is in
  std::int64_t period = 0;  ///< see NonFiniteMemory
  std::int64_t skips = 0;   ///< 1: a step that is not finite is skipped; 0: it fails

 private:
  [[nodiscard]] STAGGER_ANYWHERE static bool is_finite(double x) { return x - x == 0; }
};

/// The arguments of an optimizer's kernel, for one parameter. All pointers are to device memory. The
/// kernel changes nothing unless scale->updates().
template <class Rule, class T> struct Update {
  OptimizerView<T> view;
  Rule const* rule = nullptr;  ///< the optimizer's numbers in the current step
  GradientScale const* scale = nullptr;
  StepNumbers const* numbers = nullptr;
  std::int64_t number = 1;  ///< numbers->steps + number is the optimizer step, counted from 1
  /// view.next gets what would be added to view.value, not the sum: for a worker of a parameter
  /// server that pushes changes. Only a kernel whose Launch `makes_changes` is asked for that.
  bool changes = false;
};

namespace detail {

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
  static cudaError_t begin(GradientScale const* scale, StepNumbers* numbers, cudaStream_t stream);
  static cudaError_t add_block(ElementType type, AddedBlock const& block, cudaStream_t stream);
  template <class Rule, class T>
  static cudaError_t update(Update<Rule, T> const& what, cudaStream_t stream);
};
extern template struct LibraryKernels<OnGpu>;

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
    &detail::LibraryKernels<detail::OnGpu>::begin,
    detail::LibraryKernels<detail::OnGpu>::most_parts,
    true,
    &detail::LibraryKernels<detail::OnGpu>::add_block,
};

/// The library's kernels of optimizer::Sgd and optimizer::AdamW.
struct LaunchUpdate {
  static constexpr bool asks_scale = true;
  static constexpr bool makes_changes = true;
  template <class Rule, class T>
  cudaError_t operator()(Update<Rule, T> const& what, cudaStream_t stream) const {
    static_assert(std::same_as<Rule, optimizer::Sgd> || std::same_as<Rule, optimizer::AdamW>,
                  "stagger: the library has kernels of optimizer::Sgd and optimizer::AdamW; give "
                  "cuda::Enqueued a Launch of your own for another rule");
    return detail::LibraryKernels<detail::OnGpu>::update(what, stream);
  }
};

/// An optimizer whose update is a kernel. It contains the numbers of its rule, which may be changed
/// between steps. A parameter server takes the steps of its workers on the host, by the rule itself.
///
/// @code
///     cuda::Enqueued<optimizer::AdamW> adam{{.rate = 1e-3}};   // with the library's kernel
///
///     struct Launch {   // of your own; in a .cu file: lion_kernel<<<..., stream>>>(update);
///       static constexpr bool asks_scale = true;   // if (!update.scale->updates()) return;
///       cudaError_t operator()(cuda::Update<Lion, float> const&, cudaStream_t) const;
///       cudaError_t operator()(cuda::Update<Lion, double> const&, cudaStream_t) const;
///     };
///     cuda::Enqueued<Lion, Launch> lion{{.rate = 1e-4}};
/// @endcode
///
/// @tparam Rule    trivially copyable, with `states`; such as optimizer::AdamW
/// @tparam Launch  launches the kernel for one parameter and returns CUDA's result; its `asks_scale`
///                 says that the kernel changes nothing unless scale->updates(). Without it,
///                 Options::non_finite must be NonFinite::ignore. Its `makes_changes` says that the
///                 kernel obeys Update::changes; workers that push changes need that
template <class Rule, class Launch = LaunchUpdate> struct Enqueued : Rule {
  static_assert(std::is_trivially_copyable_v<Rule> && std::is_empty_v<Launch>,
                "stagger: an enqueued optimizer is copied to the GPU: its rule must be trivially "
                "copyable, and its Launch without members");
  using policy_tag = OptimizerTag;
  static constexpr bool enqueues = true;
  static constexpr bool asks_scale = requires {
    requires bool { Launch::asks_scale };
  };
  static constexpr bool makes_changes = requires {
    requires bool { Launch::makes_changes };
  };
  /// For parameters on the host; void if the rule has no update for them.
  using HostRule = std::conditional_t<OptimizerPolicy<Rule>, Rule, void>;

  template <class T>
  void update(OptimizerView<T> const& view, double, std::int64_t number) const noexcept {
    enqueue(view, number, false);
  }
  template <class T>
  void change(OptimizerView<T> const& view, double, std::int64_t number) const noexcept {
    enqueue(view, number, true);
  }

 private:
  template <class T>
  static void enqueue(OptimizerView<T> const& view, std::int64_t number, bool changes) noexcept {
    if (view.size == 0) return;
    auto const& step = *detail::place.step;
    Update<Rule, T> const what{view,
                               static_cast<Rule const*>(step.optimizer),
                               step.scale,
                               step.numbers,
                               number - step.steps,
                               changes};
    detail::insist([&] { return Launch{}(what, stream()); });
  }
};

}  // namespace stagger::cuda

#undef STAGGER_ANYWHERE
