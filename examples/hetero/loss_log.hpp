// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Losses of the minibatches of all workers, noted while they train.

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/model/loss.hpp>
#include <stagger/report/progress.hpp>

namespace hetero {

/// Seconds of this machine's clock.
[[nodiscard]] inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The losses of all workers, and the progress that they show.
class LossLog {
 public:
  /// @param minibatches  of each worker
  /// @param here         minibatches that are noted in this process
  /// @param unit         of the progress line; null: none is shown
  LossLog(std::size_t workers, std::size_t minibatches, std::size_t here, char const* unit)
      : losses_(workers, std::vector<double>(minibatches)),
        options_(stagger::report::progress_options(stderr)) {
    if (unit == nullptr) return;
    options_.unit = unit;
    progress_.emplace(stderr, options_, static_cast<long long>(here), 0, now_s());
  }
  LossLog(LossLog const&) = delete;
  LossLog& operator=(LossLog const&) = delete;
  /// Ends the progress line.
  ~LossLog() {
    if (progress_) progress_->finish();
  }

  /// Notes a mean loss. Workers may call it at the same time.
  /// @throws Error  bad_configuration for one that is not finite
  void note(std::size_t worker, std::size_t minibatch, double loss, double examples) {
    if (!std::isfinite(loss))
      stagger::raise(stagger::Errc::bad_configuration, "the loss of minibatch ", minibatch,
                     " of worker ", worker, " is not finite; use a smaller --rate");
    losses_[worker][minibatch] = loss;
    std::lock_guard const lock(mutex_);
    examples_ += examples;
    if (progress_) progress_->update(++ended_, loss, examples_, now_s());
  }
  /// Hands a worker's losses over.
  [[nodiscard]] std::vector<double> take(std::size_t worker) { return std::move(losses_[worker]); }

 private:
  std::vector<std::vector<double>> losses_;  // [workers][minibatches]
  std::mutex mutex_;                         // of what follows
  stagger::report::ProgressOptions options_;
  std::optional<stagger::report::Progress> progress_;
  long long ended_ = 0;
  double examples_ = 0;
};

/// A loss that notes its values while a worker trains.
template <class Loss> struct NotedLoss {
  using policy_tag = stagger::LossTag;
  using Target = typename Loss::Target;

  Loss loss{};
  LossLog* log = nullptr;
  std::size_t worker = 0;
  std::size_t step_minibatches = 0;  ///< of which each is a microbatch; 0: of a stream

  [[nodiscard]] double terms(Target const& target) const noexcept { return loss.terms(target); }
  template <class Y>
  [[nodiscard]] double value(stagger::Context& context, Y const& y, Target const& target) const {
    return loss.value(context, y, target);
  }
  template <class Y>
  double value_and_gradient(stagger::Context& context, Y const& y, Target const& target,
                            double scale, Y& dy) const {
    double const sum = loss.value_and_gradient(context, y, target, scale, dy);
    auto const step = static_cast<std::size_t>(context.step());
    log->note(worker, step * step_minibatches + static_cast<std::size_t>(context.microbatch()),
              sum / terms(target), terms(target));
    return sum;
  }
};

}  // namespace hetero
