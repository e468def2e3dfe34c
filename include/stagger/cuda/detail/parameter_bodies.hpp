// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The library's kernels for parameters: the bodies that a team of threads runs, and which of
///         them each kernel launches. How teams run is the argument `Run`: a GPU runs blocks of
///         threads, and the tests run teams of one thread on the host.

#include <algorithm>
#include <cmath>
#include <cstddef>

#include <stagger/cuda/kernels.hpp>

#ifdef __CUDACC__
#define STAGGER_ON_GPU __device__
#else
#define STAGGER_ON_GPU
#endif

namespace stagger::cuda::detail {

/// What one team of several has of an array: every so many-th element, so that threads that run
/// together read neighbours.
struct Share {
  std::size_t first;
  std::size_t stride;
};
template <class Team>
STAGGER_ON_GPU Share share_of(Team const& team, std::size_t number, std::size_t teams) {
  return {number * team.lanes() + team.lane(), teams * team.lanes()};
}

/// sum[i] += more[i].
template <class T> struct AddTo {
  T* sum;
  T const* more;
  std::size_t size;
  template <class Team>
  STAGGER_ON_GPU void operator()(Team const& team, std::size_t number, std::size_t teams) const {
    auto const own = share_of(team, number, teams);
    for (std::size_t i = own.first; i < size; i += own.stride) sum[i] += more[i];
  }
};

/// sum[r][c] += more[r][c].
template <class T> struct AddBlockTo {
  AddedBlock block;
  template <class Team>
  STAGGER_ON_GPU void operator()(Team const& team, std::size_t number, std::size_t teams) const {
    auto* const sum = static_cast<T*>(block.sum);
    auto const* const more = static_cast<T const*>(block.more);
    auto const own = share_of(team, number, teams);
    for (std::size_t i = own.first; i < block.rows * block.columns; i += own.stride) {
      std::size_t const r = i / block.columns;
      std::size_t const c = i % block.columns;
      sum[r * block.sum_stride + c] += more[r * block.more_stride + c];
    }
  }
};

/// sums[team] = the sum of the squares of its share.
template <class T> struct SumSquares {
  T const* from;
  std::size_t size;
  double* sums;  // [teams]
  template <class Team>
  STAGGER_ON_GPU void operator()(Team const& team, std::size_t number, std::size_t teams) const {
    auto const own = share_of(team, number, teams);
    double sum = 0;
    for (std::size_t i = own.first; i < size; i += own.stride)
      sum += static_cast<double>(from[i]) * static_cast<double>(from[i]);
    sum = team.sum(sum);
    if (team.lane() == 0) sums[number] = sum;
  }
};

/// *sum = the sum of the numbers. For one team.
struct SumUp {
  double const* from;
  std::size_t size;
  double* sum;
  template <class Team>
  STAGGER_ON_GPU void operator()(Team const& team, std::size_t, std::size_t) const {
    double part = 0;
    for (std::size_t i = team.lane(); i < size; i += team.lanes()) part += from[i];
    part = team.sum(part);
    if (team.lane() == 0) *sum = part;
  }
};

/// What is to be done with gradients. For one team, of which one thread adds the numbers in order.
struct FindScale {
  double const* sums;
  std::size_t count;
  double clip_norm;
  GradientScale* scale;
  template <class Team>
  STAGGER_ON_GPU void operator()(Team const& team, std::size_t, std::size_t) const {
    if (team.lane() == 0) scale->find(sums, count, clip_norm);
  }
};

/// The number of the step, without those that were skipped. For one team.
struct CorrectNumbers {
  GradientScale const* scale;
  StepNumbers* numbers;
  template <class Team>
  STAGGER_ON_GPU void operator()(Team const& team, std::size_t, std::size_t) const {
    if (team.lane() == 0) scale->correct(*numbers);
  }
};

/// What an update reads and writes: cuda::Update without what device code cannot call.
template <class Rule, class T> struct UpdateArguments {
  explicit UpdateArguments(Update<Rule, T> const& what)
      : value(what.view.value),
        next(what.view.next),
        gradient(what.view.gradient),
        state_0(what.view.state[0]),
        state_1(what.view.state[1]),
        size(what.view.size),
        decays(what.view.decays),
        rule(what.rule),
        scale(what.scale),
        numbers(what.numbers),
        number(what.number),
        changes(what.changes) {}
  T const* value;
  T* next;
  T const* gradient;
  T* state_0;
  T* state_1;
  std::size_t size;
  bool decays;
  Rule const* rule;
  GradientScale const* scale;
  StepNumbers const* numbers;
  std::int64_t number;
  bool changes;
};

/// One step, or what it would add, with the arithmetic of the host's rule.
template <class Rule, class T> struct UpdateElements;

template <class T> struct UpdateElements<optimizer::Sgd, T> {
  UpdateArguments<optimizer::Sgd, T> v;
  template <class Team>
  STAGGER_ON_GPU void operator()(Team const& team, std::size_t number, std::size_t teams) const {
    if (!v.scale->updates()) return;
    auto const& rule = *v.rule;
    auto const scale = static_cast<T>(v.scale->factor);
    auto const decay = static_cast<T>(v.decays ? rule.weight_decay : 0);
    auto const mu = static_cast<T>(rule.momentum);
    auto const eta = static_cast<T>(rule.rate);
    auto const own = share_of(team, number, teams);
    for (std::size_t i = own.first; i < v.size; i += own.stride) {
      T const slope = v.gradient[i] * scale + decay * v.value[i];
      T const velocity = mu * v.state_0[i] + slope;
      v.state_0[i] = velocity;
      v.next[i] = v.changes ? -eta * velocity : v.value[i] - eta * velocity;
    }
  }
};

template <class T> struct UpdateElements<optimizer::AdamW, T> {
  UpdateArguments<optimizer::AdamW, T> v;
  template <class Team>
  STAGGER_ON_GPU void operator()(Team const& team, std::size_t number, std::size_t teams) const {
    if (!v.scale->updates()) return;
    auto const& rule = *v.rule;
    double const t = static_cast<double>(v.numbers->steps + v.number);
    auto const scale = static_cast<T>(v.scale->factor);
    auto const b1 = static_cast<T>(rule.beta1);
    auto const b2 = static_cast<T>(rule.beta2);
    double const decaying =
        v.changes ? -rule.rate * rule.weight_decay : 1 - rule.rate * rule.weight_decay;
    auto const keep = static_cast<T>(v.decays ? decaying : v.changes ? 0 : 1);
    auto const eta = static_cast<T>(rule.rate / (1 - std::pow(rule.beta1, t)));
    auto const root = static_cast<T>(1 / std::sqrt(1 - std::pow(rule.beta2, t)));
    auto const eps = static_cast<T>(rule.epsilon);
    auto const own = share_of(team, number, teams);
    for (std::size_t i = own.first; i < v.size; i += own.stride) {
      T const gradient = v.gradient[i] * scale;
      T const m = b1 * v.state_0[i] + (1 - b1) * gradient;
      T const s = b2 * v.state_1[i] + (1 - b2) * gradient * gradient;
      v.state_0[i] = m;
      v.state_1[i] = s;
      v.next[i] = keep * v.value[i] - eta * m / (std::sqrt(s) * root + eps);
    }
  }
};

/// How many teams share an array: each has some thousand elements, unless it is large.
[[nodiscard]] inline std::size_t teams_for(std::size_t size, std::size_t most) noexcept {
  return std::min(size / 2048 + 1, most);
}

/// Calls `with(pointer)` for the type of the elements.
template <class With> cudaError_t with_elements(ElementType type, void const* elements, With with) {
  return type == ElementType::f32 ? with(static_cast<float const*>(elements))
                                  : with(static_cast<double const*>(elements));
}

template <class Run>
cudaError_t LibraryKernels<Run>::add(ElementType type, void* sum, void const* more,
                                     std::size_t size, cudaStream_t stream) {
  return with_elements(type, more, [=]<class T>(T const* from) {
    return Run::teams(stream, teams_for(size, most_parts),
                      AddTo<T>{static_cast<T*>(sum), from, size});
  });
}
template <class Run>
cudaError_t LibraryKernels<Run>::add_block(ElementType type, AddedBlock const& block,
                                           cudaStream_t stream) {
  std::size_t const size = block.rows * block.columns;
  bool const contiguous = block.sum_stride == block.columns && block.more_stride == block.columns;
  if (contiguous) return add(type, block.sum, block.more, size, stream);
  return with_elements(type, block.more, [=]<class T>(T const*) {
    return Run::teams(stream, teams_for(size, most_parts), AddBlockTo<T>{block});
  });
}
template <class Run>
cudaError_t LibraryKernels<Run>::sum_squares(ElementType type, void const* gradient,
                                             std::size_t size, double* sum, double* scratch,
                                             cudaStream_t stream) {
  std::size_t const parts = teams_for(size, most_parts);
  auto const result = with_elements(type, gradient, [=]<class T>(T const* from) {
    return Run::teams(stream, parts, SumSquares<T>{from, size, parts == 1 ? sum : scratch});
  });
  if (result != cudaSuccess || parts == 1) return result;
  return Run::teams(stream, 1, SumUp{scratch, parts, sum});
}
template <class Run>
cudaError_t LibraryKernels<Run>::scale(double const* sums, std::size_t count, double clip_norm,
                                       GradientScale* scale, cudaStream_t stream) {
  return Run::teams(stream, 1, FindScale{sums, count, clip_norm, scale});
}
template <class Run>
cudaError_t LibraryKernels<Run>::begin(GradientScale const* scale, StepNumbers* numbers,
                                       cudaStream_t stream) {
  return Run::teams(stream, 1, CorrectNumbers{scale, numbers});
}
template <class Run>
template <class Rule, class T>
cudaError_t LibraryKernels<Run>::update(Update<Rule, T> const& what, cudaStream_t stream) {
  return Run::teams(stream, teams_for(what.view.size, most_parts),
                    UpdateElements<Rule, T>{UpdateArguments<Rule, T>(what)});
}

}  // namespace stagger::cuda::detail

#undef STAGGER_ON_GPU
