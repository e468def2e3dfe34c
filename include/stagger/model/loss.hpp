// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The contract of losses, which compare outputs with targets; two losses for `Tensor`.
///
/// | loss | take it when |
/// |---|---|
/// | loss::MeanSquaredError<>{} | the model gives numbers |
/// | loss::CrossEntropy<>{} | the model chooses among classes, such as labels or tokens |
/// | none | the pipeline only predicts |
///
/// A loss is a sum over terms (elements or tokens). The engine divides by the number of terms of
/// the whole minibatch, so that the result is right for microbatches of unequal size.
///
/// | member | when it is asked | |
/// |---|---|---|
/// | `Target` | compiling `with` | what a batch has for each of its inputs |
/// | `terms(target)` | once for each microbatch, before a step runs | how many terms it contributes, finite and >= 0 |
/// | `value(context, y, target)` | in `evaluate`, after the last stage's forward | sum of the loss over the terms |
/// | `value_and_gradient(context, y, target, scale, dy)` | in a step, before the last stage's backward | the same sum; writes scale * d(sum)/dy into `dy` |
/// | `padding()` | by `divide`, to pad a minibatch; optional | a target of one row that counts as nothing |
///
/// The engine promises: `scale` is 1 over the terms of the minibatch, or 0 if it has none; `y` and
/// `target` are those of one microbatch, or of the rows of one replica. As the functions may run
/// on several threads at once, they are const. What they throw ends the step.
///
/// In examples/14_own_policies.cpp:
/// @code
/// struct Huber {
///   using policy_tag = sg::LossTag;
///   using Target = float;
///   double terms(float const&) const { return 1; }  // the engine divides by those of the minibatch
///   double value(sg::Context&, float const& y, float const& target) const {
///     double const far = std::fabs(static_cast<double>(y) - static_cast<double>(target));
///     return far < 1 ? far * far / 2 : far - 0.5;
///   }
///   double value_and_gradient(sg::Context& c, float const& y, float const& target, double scale,
///                             float& dy) const {
///     double const slope = static_cast<double>(y) - static_cast<double>(target);
///     dy = static_cast<float>(scale * std::fmax(-1.0, std::fmin(1.0, slope)));
///     return value(c, y, target);
///   }
/// };
/// @endcode
/// A type without `Target` gets "stagger: not a LossPolicy: ...", one that does not fit the model
/// "stagger: the loss does not accept the Output of the last stage: it needs ...".

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/math.hpp>
#include <stagger/core/tensor.hpp>
#include <stagger/model/context.hpp>

namespace stagger {

/// Marks a loss: `using policy_tag = stagger::LossTag;`.
struct LossTag {};

template <class L>
concept LossPolicy = std::copyable<L> && std::same_as<typename L::policy_tag, LossTag> &&
                     requires { typename L::Target; };

/// Whether a loss accepts outputs of type Y.
template <class L, class Y>
concept LossFor = LossPolicy<L> && requires(L const& loss, Context& context, Y const& y,
                                            typename L::Target const& target, double scale, Y& dy) {
  { loss.terms(target) } -> std::convertible_to<double>;
  { loss.value(context, y, target) } -> std::convertible_to<double>;
  { loss.value_and_gradient(context, y, target, scale, dy) } -> std::convertible_to<double>;
};

namespace detail {

[[noreturn]] [[gnu::cold]] [[gnu::noinline]] inline void refuse_terms(double terms,
                                                                      std::size_t microbatch) {
  raise(Errc::bad_data, "the loss counts ", terms, " terms in the target of microbatch ",
        microbatch, "; let its terms() return a finite number that is at least 0");
}

/// @param terms  what the loss says of the target of a microbatch
/// @throws Error  bad_data if no gradient could be weighed with it
inline double require_terms(double terms, std::size_t microbatch) {
  constexpr double most = std::numeric_limits<double>::max();
  if (!(terms >= 0 && terms <= most)) [[unlikely]]
    refuse_terms(terms, microbatch);
  return terms;
}

}  // namespace detail

namespace loss {

/// (y - target)^2, one term per element.
/// @throws Error  with Errc::mismatch if y and target differ in size
template <class T = float> struct MeanSquaredError {
  using policy_tag = LossTag;
  using Target = Tensor<T>;

  [[nodiscard]] double terms(Target const& target) const noexcept {
    return static_cast<double>(target.size());
  }

  [[nodiscard]] double value(Context&, Tensor<T> const& y, Target const& target) const {
    if (y.size() != target.size())
      raise(
          Errc::mismatch, "the model's output has ", counted(y.size(), "element"),
          " and the target ", target.size(),
          "; give each microbatch a target of the output's size, or let each layer size its output "
          "anew for each microbatch");
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) {
      double const difference = static_cast<double>(y[i]) - static_cast<double>(target[i]);
      sum += difference * difference;
    }
    return sum;
  }

  double value_and_gradient(Context& context, Tensor<T> const& y, Target const& target,
                            double scale, Tensor<T>& dy) const {
    double const sum = value(context, y, target);
    dy.resize_like(y);
    for (std::size_t i = 0; i < y.size(); ++i)
      dy[i] =
          static_cast<T>(2 * scale * (static_cast<double>(y[i]) - static_cast<double>(target[i])));
    return sum;
  }
};

/// Softmax cross-entropy in nats, one term per row whose class is not `ignored`.
///
/// @shape y       [rows][classes] logits
/// @shape target  [rows] class numbers
/// @throws Error  with Errc::mismatch if the rows differ, Errc::bad_data if a class is out of range
template <class T = float> struct CrossEntropy {
  using policy_tag = LossTag;
  using Target = Tensor<std::int32_t>;

  std::optional<std::int32_t> ignored{};  ///< class of rows that count as nothing

  [[nodiscard]] double terms(Target const& target) const noexcept {
    std::size_t rows = target.size();
    if (ignored)
      for (std::int32_t const number : target) rows -= number == *ignored ? 1 : 0;
    return static_cast<double>(rows);
  }

  /// The target of a row that counts as nothing.
  /// @throws Error  with Errc::bad_configuration if no class is ignored
  [[nodiscard]] Target padding() const {
    if (!ignored)
      raise(
          Errc::bad_configuration,
          "a cross-entropy that ignores no class cannot leave out rows; give it one that the model "
          "does not have, CrossEntropy<>{.ignored = -1}");
    return Target::of({*ignored});
  }

  [[nodiscard]] double value(Context&, Tensor<T> const& y, Target const& target) const {
    return sum_over_rows(y, target, [](std::size_t, std::size_t, double) {});
  }

  double value_and_gradient(Context&, Tensor<T> const& y, Target const& target, double scale,
                            Tensor<T>& dy) const {
    dy.resize_like(y);
    if (ignored) dy.fill(0);
    std::size_t const classes = y.extent(1);
    return sum_over_rows(y, target, [&](std::size_t row, std::size_t label, double log_sum) {
      for (std::size_t c = 0; c < classes; ++c) {
        double const probability =
            detail::math::exp(static_cast<double>(y[row * classes + c]) - log_sum);
        dy[row * classes + c] = static_cast<T>(scale * (probability - (c == label ? 1.0 : 0.0)));
      }
    });
  }

 private:
  template <class Visit>
  double sum_over_rows(Tensor<T> const& y, Target const& target, Visit visit) const {
    std::size_t const rows = y.extent(0);
    std::size_t const classes = y.extent(1);
    if (rows != target.size())
      raise(
          Errc::mismatch, "the model's output has ", counted(rows, "row"), " and the target ",
          target.size(),
          "; give each row one class, or let each layer size its output anew for each microbatch");
    double sum = 0;
    for (std::size_t row = 0; row < rows; ++row) {
      if (target[row] == ignored) continue;
      T const* const logits = y.data() + row * classes;
      auto const label = static_cast<std::size_t>(target[row]);
      if (target[row] < 0 || label >= classes)
        raise(Errc::bad_data, "class ", target[row], " in row ", row,
              " is out of range; the model has classes 0 to ", classes - 1);
      double largest = static_cast<double>(logits[0]);
      for (std::size_t c = 1; c < classes; ++c)
        largest = detail::math::fmax(largest, static_cast<double>(logits[c]));
      double exponentials = 0;
      for (std::size_t c = 0; c < classes; ++c)
        exponentials += detail::math::exp(static_cast<double>(logits[c]) - largest);
      double const log_sum = largest + detail::math::log(exponentials);
      sum += log_sum - static_cast<double>(logits[label]);
      visit(row, label, log_sum);
    }
    return sum;
  }
};

}  // namespace loss
}  // namespace stagger
