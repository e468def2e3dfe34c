// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Two-stage synchronisation at a parameter server: which layers workers may send late,
///         chosen anew after each step.
/// @source Chen et al., "OSP: Boosting Distributed Model Training with 2-stage Synchronization",
///         ICPP 2023, section 4.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <stagger/core/error.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/parameters/late_set.hpp>
#include <stagger/parameters/layer_parameters.hpp>

namespace stagger::detail {

/// What an importance policy sees of one layer: the gradients of a step, summed over workers, and
/// the values at which they were taken.
class ScoredLayer {
 public:
  /// @param layer    has the gradients, and the values in `version`
  /// @param step     from 0, since the workers began
  ScoredLayer(LayerParameters const& layer, std::size_t version, std::int64_t step)
      : layer_(layer), version_(version), step_(step) {}

  /// Number of the layer in the model.
  [[nodiscard]] int number() const noexcept { return layer_.number(); }
  [[nodiscard]] std::int64_t step() const noexcept { return step_; }
  [[nodiscard]] std::size_t elements() const noexcept {
    std::size_t sum = 0;
    for (std::size_t i = 0; i < layer_.count(); ++i) sum += layer_.declaration(i).size;
    return sum;
  }
  /// Size of the values as they are sent.
  [[nodiscard]] std::size_t bytes() const noexcept { return layer_.sent_bytes(); }
  /// Calls visit(gradient, value) for each element, in order. Both are double.
  template <class Visit> void each(Visit visit) const {
    ParameterView const* const views = layer_.views();
    for (std::size_t i = 0; i < layer_.count(); ++i) {
      void const* const value = views[version_ * layer_.count() + i].value;
      with_type(layer_.declaration(i).type, [&]<class T>() {
        auto const* const gradients = static_cast<T const*>(views[i].gradient);
        auto const* const values = static_cast<T const*>(value);
        for (std::size_t e = 0; e < views[i].size; ++e)
          visit(static_cast<double>(gradients[e]), static_cast<double>(values[e]));
      });
    }
  }

 private:
  LayerParameters const& layer_;
  std::size_t version_;
  std::int64_t step_;
};

/// Is notified of the gradients that a store adds.
class AddedRounds {
 public:
  /// Called when all gradients of a layer have been added, and its values are still those at which
  /// they were taken.
  virtual void add(ScoredLayer const& layer) noexcept = 0;

 protected:
  ~AddedRounds() = default;
};

/// A layer as a selection sees it.
struct LateCandidate {
  int layer = 0;
  std::uint64_t bytes = 0;  // of its values
  double score = 0;
  bool late = false;
  std::uint64_t late_bytes = 0;  // if not 0: only this many, the first ones, are late
};

/// A step that has ended, as a budget policy sees it.
struct EndedStep {
  std::int64_t step = 0;          // from 0, of those that the policy has been told of
  double loss = 0;                // mean over these workers
  std::uint64_t model_bytes = 0;  // of all layers that have parameters
  int workers = 1;                // those whose losses count
};

/// The importance, selection and budget policies of a model, their types erased.
class LateChoice {
 public:
  virtual ~LateChoice() = default;
  /// Starts over: no step has ended so far.
  virtual void begin() noexcept = 0;
  /// The importance of one layer. May be called by any thread.
  [[nodiscard]] virtual double score(ScoredLayer const& layer) const = 0;
  /// Bytes that may be late in the next step; none if that is not positive. Called once for each
  /// step, in order.
  [[nodiscard]] virtual double budget(EndedStep const& step) = 0;
  /// @param layers  in the order of rising scores
  virtual void select(std::span<LateCandidate> layers, double budget) const = 0;
};

/// Functions of an overlapped staleness model, by address, so that only programs with one compile
/// them.
struct LateCalls {
  std::unique_ptr<LateChoice> (*choice)(void const* policy) = nullptr;
  bool (*equal)(void const* a, void const* b) = nullptr;
  /// Text by which processes compare two models; empty if they cannot be compared.
  std::string (*words)(void const* policy) = nullptr;
  /// Null: nothing is predicted. On entry version 1 has the change that the worker's own gradient
  /// would make; on return version 0 has the predicted values, and version 1 the former version 0.
  void (*predict)(void const* policy, LayerParameters&, std::byte* kept, ByteRange) = nullptr;
  /// Null: nothing is kept. Called when version 0 has the values that arrived; version 1 is as
  /// above.
  void (*remember)(void const* policy, LayerParameters const&, std::byte* kept,
                   ByteRange) = nullptr;
};

/// [layers] Bytes of the values as they are sent.
[[nodiscard]] [[gnu::cold]] inline List<std::uint64_t> bytes_to_send(
    std::span<LayerParameters const> layers) {
  List<std::uint64_t> bytes;
  for (LayerParameters const& layer : layers) bytes.push_back(layer.sent_bytes());
  return bytes;
}

/// Collects the scores and losses of a step and chooses the late layers of the next. The caller
/// must hold a lock.
class LateLayers {
 public:
  /// @param bytes    [layers] of the values; a layer with 0 takes no part
  /// @param losses   how many losses are reported in each step, one by each worker, or one for all
  ///                 of them; their mean counts
  /// @param chooses  if false, only scores are collected, and the workers choose
  [[gnu::cold]] LateLayers(std::unique_ptr<LateChoice> choice, List<std::uint64_t> bytes,
                           std::size_t workers, std::size_t losses, bool chooses)
      : choice_(std::move(choice)),
        bytes_(std::move(bytes)),
        scores_(bytes_.size()),
        losses_(losses),
        reported_(losses),
        there_(losses, true),
        told_(chooses ? 0 : 2 * bytes_.size()),
        bitmap_((bytes_.size() + 7) / 8),
        workers_(static_cast<int>(workers)),
        chooses_(chooses) {
    for (std::uint64_t const each : bytes_)
      if (each != 0) candidates_.emplace_back(), model_bytes_ += each;
    reset();
  }

  [[nodiscard]] LateChoice const& choice() const noexcept { return *choice_; }
  [[nodiscard]] bool chooses() const noexcept { return chooses_; }
  /// If the workers choose: [layers] scores for the choice of a step, and the mean loss with them.
  /// Those of the choice before are kept too: a process of a worker that runs other layers than
  /// those that are pushed next may ask later.
  /// @pre step() - 1 <= step <= step()
  [[nodiscard]] std::span<double const> scores(std::uint32_t step) const noexcept {
    return {told_.data() + (step % 2) * scores_.size(), scores_.size()};
  }
  [[nodiscard]] double loss(std::uint32_t step) const noexcept { return told_loss_[step % 2]; }
  /// The step whose late layers, or the scores for choosing them, are known, counted from 0.
  [[nodiscard]] std::uint32_t step() const noexcept { return step_; }
  [[nodiscard]] LateSet late() const noexcept {
    return {{bitmap_.data(), bitmap_.size()}, split_, split_bytes_};
  }

  /// Whether a worker takes part: the choice waits for its losses.
  [[nodiscard]] bool has(std::size_t worker) const noexcept { return there_[worker]; }
  [[nodiscard]] bool has_any() const noexcept {
    return std::find(there_.begin(), there_.end(), true) != there_.end();
  }
  /// Whether everything of the last step is added, and no layer of the next one.
  [[nodiscard]] bool between_steps() const noexcept { return scored_ == 0; }

  /// Adds the score of a layer that has been updated.
  /// @return whether the next choice has all that it needs
  bool add_score(std::size_t layer, double score) {
    scores_[layer] = score;
    ++scored_;
    return end_step();
  }
  bool add_loss(std::size_t worker, double loss) {
    if (!there_[worker]) return false;
    losses_[worker] = loss;
    reported_[worker] = true;
    return end_step();
  }
  /// A worker has gone. A loss that it has reported still counts in its step.
  /// @return likewise
  bool lose(std::size_t worker) {
    there_[worker] = false;
    return end_step();
  }
  /// A worker takes part again, from the next step on. @pre between_steps()
  void come_back(std::size_t worker) noexcept {
    there_[worker] = true;
    reported_[worker] = false;
  }
  /// Starts over: in the first step nothing is late. The budget keeps what it has seen: workers
  /// that begin again after a failure go on with the training.
  void reset() noexcept {
    step_ = 0;
    std::fill(bitmap_.begin(), bitmap_.end(), std::byte{0});
    split_bytes_ = 0;
    begin_step();
  }
  /// Likewise, and the budget has seen no step.
  void forget() noexcept {
    choice_->begin();
    ended_ = 0;
    reset();
  }

 private:
  void begin_step() noexcept {
    scored_ = 0;
    std::fill(reported_.begin(), reported_.end(), false);
  }
  /// Ends the step, if all scores have come, and the losses of all who take part.
  bool end_step() {
    if (scored_ != candidates_.size() || count_losses() == 0) return false;
    for (std::size_t n = 0; n < losses_.size(); ++n)
      if (there_[n] && !reported_[n]) return false;
    struct Begin {
      LateLayers& of;
      ~Begin() { of.begin_step(); }
    } const next{*this};  // also behind a choice that fails
    if (chooses_) choose();
    ++step_;
    if (chooses_) return true;
    std::copy(scores_.begin(), scores_.end(), told_.begin() + (step_ % 2) * scores_.size());
    told_loss_[step_ % 2] = mean_loss();
    return true;
  }
  [[nodiscard]] std::size_t count_losses() const noexcept {
    return static_cast<std::size_t>(std::count(reported_.begin(), reported_.end(), true));
  }
  [[nodiscard]] double mean_loss() const noexcept {
    double sum = 0;
    for (std::size_t n = 0; n < losses_.size(); ++n)
      if (reported_[n]) sum += losses_[n];
    return sum / static_cast<double>(count_losses());
  }

  void choose() {
    int const silent = static_cast<int>(losses_.size() - count_losses());  // who have gone
    double const budget =  // 0 in place of one that is negative, or NaN
        std::max(0.0, choice_->budget({ended_++, mean_loss(), model_bytes_, workers_ - silent}));
    std::size_t c = 0;
    for (std::size_t l = 0; l < bytes_.size(); ++l) {
      if (bytes_[l] == 0) continue;
      if (!math::isfinite(scores_[l]))
        raise(Errc::bad_data, "the importance of layer ", l, " is ", scores_[l], " after step ",
              step_, "; a gradient or a value has overflowed: lower the rate");
      candidates_[c++] = {static_cast<int>(l), bytes_[l], scores_[l], false, 0};
    }
    std::sort(candidates_.begin(), candidates_.end(), [](auto const& a, auto const& b) {
      return a.score != b.score ? a.score < b.score : a.layer < b.layer;
    });
    choice_->select({candidates_.data(), candidates_.size()}, budget);
    std::fill(bitmap_.begin(), bitmap_.end(), std::byte{0});
    double late = 0;
    split_bytes_ = 0;
    for (LateCandidate const& each : candidates_) {
      bool const whole = each.late || each.late_bytes >= each.bytes;
      std::uint64_t const bytes = whole ? each.bytes : each.late_bytes / widest * widest;
      if (bytes == 0) continue;
      auto const l = static_cast<std::size_t>(each.layer);
      if (!whole) split(l, bytes);
      late += static_cast<double>(bytes);
      bitmap_[l / 8] |= std::byte{1} << l % 8;
    }
    if (late > budget)
      raise(Errc::bad_configuration, "the selection sends ", late,
            " bytes late, where the budget is ", budget,
            "; let it mark layers whose bytes together are at most that");
  }
  void split(std::size_t layer, std::uint64_t bytes) {
    if (split_bytes_ != 0)
      raise(Errc::bad_configuration, "the selection splits layer ", split_, " and layer ", layer,
            "; let it split at most one");
    split_ = layer;
    split_bytes_ = static_cast<std::size_t>(bytes);
  }

  static constexpr std::uint64_t widest = 8;  // bytes of an element, none of which is divided

  std::unique_ptr<LateChoice> choice_;
  List<std::uint64_t> bytes_;  // [layers]
  List<double> scores_;        // [layers]
  List<double> losses_;
  List<bool> reported_;  // [losses] in this step
  List<bool> there_;     // [losses] whether it is waited for
  List<double> told_;    // [2][layers] see scores()
  std::array<double, 2> told_loss_{};
  List<std::byte> bitmap_;
  List<LateCandidate> candidates_;  // layers that have parameters
  std::size_t split_ = 0;           // the layer of which only
  std::size_t split_bytes_ = 0;     // are late; 0: there is none
  int workers_;
  bool chooses_;
  std::uint64_t model_bytes_ = 0;
  std::size_t scored_ = 0;  // layers, in the current step
  std::uint32_t step_ = 0;
  std::int64_t ended_ = 0;  // steps that the budget has seen
};

}  // namespace stagger::detail
