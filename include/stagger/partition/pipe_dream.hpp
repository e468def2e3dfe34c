// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   PipeDream's partitioner: replicated stages, level by level of the network.
/// @source D. Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training",
///         SOSP 2019, section 3.1, with the costs of its published optimiser.

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/partition/costs.hpp>
#include <stagger/partition/detail/given_order.hpp>

namespace stagger::partition {

namespace detail {

/// The best pipelines on up to `count` groups of devices behind one kind of link. A stage on m
/// groups takes (T + 4 (m - 1) parameters / (rate m)) / m, with T its time on one group; between
/// nodes, each device of a group exchanges its share of the parameters. A transfer over a boundary
/// takes 2 activations / (rate m) and counts like a stage.
class PipeDreamLevel {
 public:
  /// @param inner  the level below, of which groups consist; null: groups are single devices
  /// @param all    false if only chains that begin with the first layer are needed
  constexpr PipeDreamLevel(Costs const& costs, PipeDreamLevel const* inner, int count, double rate,
                           bool all)
      : costs_(costs),
        inner_(inner),
        count_(count),
        layers_(costs.layers()),
        rows_(at(all ? layers_ : 1)),
        rate_(rate) {
    std::size_t const size = rows_ * at(layers_ + 1) * at(count);
    value_.assign(size, no_time);
    choice_.assign(size, {});
    prepare();
    for (std::size_t i = 0; i < rows_; ++i)
      for (int m = 1; m <= count; ++m)
        for (int j = static_cast<int>(i) + 1; j <= layers_; ++j) fill(static_cast<int>(i), j, m);
  }

  /// Time of a pipeline of the layers [i, j) on m groups.
  [[nodiscard]] constexpr double seconds(int i, int j, int m) const { return row(i, m)[j]; }

  struct Stage {
    int first, last;
    std::vector<int> devices;  ///< indices of the given devices
  };

  /// Appends the stages of [i, j) on m groups, each group `width` devices.
  /// @param groups  [replicas of the whole pipeline] first device of each
  constexpr void stages(int i, int j, int m, std::vector<int> const& copies, int width,
                        std::vector<Stage>& out) const {
    Choice const& e = choice_[slot(i, m) + at(j)];
    int const before = m - e.replicas;
    if (e.split >= 0) stages(i, e.split, before, copies, width, out);
    std::vector<int> groups;
    for (int const copy : copies)
      for (int r = 0; r < e.replicas; ++r) groups.push_back(copy + (before + r) * width);
    int const from = e.split < 0 ? i : e.split;
    if (inner_ == nullptr)
      out.push_back({from, j, std::move(groups)});
    else
      inner_->stages(from, j, inner_->count_, groups, width / inner_->count_, out);
  }

 private:
  struct Choice {
    int split = -1;    // first layer of the last stage; -1: there is only one stage
    int replicas = 1;  // of the last stage
  };

  /// The index of the first pipeline of the layers from i on, on m groups.
  [[nodiscard]] constexpr std::size_t slot(int i, int m) const {
    return (at(m - 1) * rows_ + at(i)) * at(layers_ + 1);
  }
  [[nodiscard]] constexpr double const* row(int i, int m) const {
    return value_.data() + slot(i, m);
  }

  /// Prefix sums of a stage's time and times of a boundary, for each number of replicas.
  constexpr void prepare() {
    auto const& until = costs_.until_s[at(costs_.place(0).times)];
    int const sharing = inner_ == nullptr ? 1 : inner_->count_;
    for (int r = 1; r <= count_; ++r) {
      std::vector<double> own;
      std::vector<double> crossing;
      for (int k = 0; k <= layers_; ++k) {
        double const exchange =
            4.0 * (r - 1) / (rate_ * r * sharing) * costs_.parameter_bytes_until[at(k)];
        own.push_back(((inner_ == nullptr ? until[at(k)] : 0) + exchange) / r);
        crossing.push_back(2 * costs_.boundary_bytes[at(k)] / (rate_ * r));
      }
      own_.push_back(std::move(own));
      crossing_.push_back(std::move(crossing));
    }
  }

  constexpr void fill(int i, int j, int m) {
    auto const stage = [&](std::vector<double> const& own, int k, int replicas) {
      double const shared = own[at(j)] - own[at(k)];
      return inner_ == nullptr ? shared : shared + inner_->row(k, inner_->count_)[j] / replicas;
    };
    double best = stage(own_[at(m - 1)], i, m);
    Choice choice{-1, m};
    for (int replicas = 1; replicas < m; ++replicas) {
      auto const& own = own_[at(replicas - 1)];
      auto const& crossing = crossing_[at(replicas - 1)];
      double const leaving = j < layers_ ? crossing[at(j)] : 0;
      double const* const before = row(i, m - replicas);
      if (leaving >= best) continue;
      for (int k = j - 1; k > i; --k) {
        double const last = stage(own, k, replicas);
        if (last >= best) {
          if (inner_ == nullptr) break;  // longer stages take longer
          continue;
        }
        double const value =
            std::max(std::max(before[k], last), std::max(crossing[at(k)], leaving));
        if (value >= best) continue;
        best = value;
        choice = {k, replicas};
      }
    }
    value_[slot(i, m) + at(j)] = best;
    choice_[slot(i, m) + at(j)] = choice;
  }

  Costs const& costs_;
  PipeDreamLevel const* inner_;
  int count_;
  int layers_;
  std::size_t rows_;
  double rate_;
  std::vector<std::vector<double>> own_{}, crossing_{};  // [replicas - 1][layers + 1]
  std::vector<double> value_{};                          // [m - 1][i][j]
  std::vector<Choice> choice_{};
};

}  // namespace detail

/// Stages with one or several replicas, for equal devices in equal nodes: first the best pipelines
/// inside a node, then pipelines of nodes. If all devices are in one node, or each in its own,
/// there is one level.
///
/// Optimal for its own cost model, in which replicas of a stage process minibatches in turn and
/// exchange gradients at the link's rate, without start-up times. Memory is not limited, as in the
/// published optimiser, but reported.
/// @complexity  O(layers^2 devices^2) for one level, O(layers^3 devices^2) in a node of several
struct PipeDream {
  int in_flight = 1;  ///< minibatches in flight, for the reported memory

  /// @throws Error  bad_configuration for unequal devices or nodes, or none
  [[nodiscard]] constexpr Partition partition(Costs const& costs) const {
    detail::require_in_flight(in_flight);
    detail::require_stages(costs.devices() > 0 ? 1 : 0, costs.layers());
    int const width = devices_of_a_node(costs);
    int const nodes = costs.devices() / width;
    std::vector<detail::PipeDreamLevel::Stage> stages;
    double bottleneck = 0;
    double const inside = costs.inside(costs.place(0).node).bytes_per_s;
    if (width == 1 || nodes == 1) {
      detail::PipeDreamLevel const flat(costs, nullptr, costs.devices(),
                                        nodes == 1 ? inside : costs.inter.bytes_per_s, false);
      flat.stages(0, costs.layers(), costs.devices(), {0}, 1, stages);
      bottleneck = flat.seconds(0, costs.layers(), costs.devices());
    } else {
      detail::PipeDreamLevel const node(costs, nullptr, width, inside, true);
      detail::PipeDreamLevel const top(costs, &node, nodes, costs.inter.bytes_per_s, false);
      top.stages(0, costs.layers(), nodes, {0}, width, stages);
      bottleneck = top.seconds(0, costs.layers(), nodes);
    }
    return written(costs, stages, bottleneck, width);
  }

 private:
  [[nodiscard]] static constexpr int devices_of_a_node(Costs const& costs) {
    int width = 0;
    for (int d = 0; d < costs.devices(); ++d) {
      Place const& p = costs.place(d);
      if (p.times != costs.place(0).times)
        raise(Errc::bad_configuration, "device ", p.id, " is of another kind than device ",
              costs.place(0).id, "; PipeDream's partitioner is for equal devices, use MinMax");
      if (p.node == costs.place(0).node) ++width;
    }
    for (int d = 0; d < costs.devices(); ++d)
      if (costs.devices() % width != 0 || costs.place(d).node != costs.place(d - d % width).node ||
          (d % width == 0 && d > 0 && costs.place(d).node == costs.place(d - 1).node))
        raise(Errc::bad_configuration, "device ", costs.place(d).id,
              " breaks the order of nodes of ", width,
              " devices; PipeDream's partitioner is for equal nodes, one after the "
              "other");
    return width;
  }

  [[nodiscard]] constexpr Partition written(
      Costs const& costs, std::vector<detail::PipeDreamLevel::Stage> const& stages,
      double bottleneck, int width) const {
    Partition result{.bottleneck_s = bottleneck, .lower_bound_s = bottleneck};
    int const count = static_cast<int>(stages.size());
    for (int s = 0; s < count; ++s) {
      auto const& stage = stages[detail::at(s)];
      if (s > 0) result.cuts.push_back(stage.first);
      std::vector<int> ids;
      for (int const d : stage.devices) ids.push_back(costs.place(d).id);
      result.stage_s.push_back(seconds_of(costs, stage, width));
      result.devices.push_back(std::move(ids));
      result.memory_bytes.push_back(
          detail::whole_bytes(costs.memory_bytes(stage.first, stage.last, s, count, in_flight)));
    }
    return result;
  }

  /// Seconds of a stage without its boundaries, with all its replicas as one group behind the
  /// slowest link between them.
  [[nodiscard]] static constexpr double seconds_of(Costs const& costs,
                                                   detail::PipeDreamLevel::Stage const& stage,
                                                   int width) {
    int const node = costs.place(stage.devices.front()).node;
    int inside = 0;  // replicas in the first one's node
    for (int const d : stage.devices) inside += costs.place(d).node == node ? 1 : 0;
    double const parameters = costs.parameter_bytes(stage.first, stage.last);
    auto const shared = [&](double one, int m, double rate, int sharing) {
      return (one + 4 * (m - 1) * parameters / (rate * m * sharing)) / m;
    };
    double const in_node = shared(costs.compute_s(stage.devices.front(), stage.first, stage.last),
                                  inside, costs.inside(node).bytes_per_s, 1);
    int const groups = static_cast<int>(stage.devices.size()) / inside;
    return shared(in_node, groups, costs.inter.bytes_per_s, width);
  }
};

static_assert(CostPolicy<PipeDream>);

}  // namespace stagger::partition
