// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The loss on the last stage: the concept, and two losses for `Tensor`.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <stagger/core/error.hpp>
#include <stagger/core/math.hpp>
#include <stagger/core/tensor.hpp>
#include <stagger/model/context.hpp>

namespace stagger {

/// Marks a loss: `using policy_tag = stagger::LossTag;`.
struct LossTag {};

/// A loss compares the last stage's output with a target. It returns *sums over terms* (elements or
/// tokens); the engine divides by the number of terms of the whole minibatch, so that the result is
/// right for microbatches of unequal size.
template <class L>
concept LossPolicy = std::copyable<L> && std::same_as<typename L::policy_tag, LossTag> &&
                     requires { typename L::Target; };

/// Whether a loss accepts outputs of type Y.
///  - `terms(target)`: how many terms the microbatch contributes, >= 0
///  - `value(context, y, target)`: sum of the loss over the terms
///  - `value_and_gradient(context, y, target, scale, dy)`: the same sum; writes scale * d(sum)/dy
///  into dy
template <class L, class Y, class C = Context>
concept LossFor = LossPolicy<L> && requires(L const& loss, C& context, Y const& y,
                                            typename L::Target const& target, double scale, Y& dy) {
  { loss.terms(target) } -> std::convertible_to<double>;
  { loss.value(context, y, target) } -> std::convertible_to<double>;
  { loss.value_and_gradient(context, y, target, scale, dy) } -> std::convertible_to<double>;
};

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
    check(y, target);
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

 private:
  static void check(Tensor<T> const& y, Target const& target) {
    if (y.size() != target.size())
      raise(Errc::mismatch, "the model's output has ", counted(y.size(), "element"),
            " and the target ", target.size(),
            "; give each microbatch a target of the output's size");
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
    auto const rows = static_cast<double>(target.size());
    if (!ignored) return rows;
    return rows - static_cast<double>(std::count(target.begin(), target.end(), *ignored));
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
      raise(Errc::mismatch, "the model's output has ", counted(rows, "row"), " and the target ",
            target.size(), "; give each row one class");
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
