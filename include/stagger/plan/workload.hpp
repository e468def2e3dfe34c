// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The request to a planner, and the costs of stages on groups of devices that it needs.
/// @source Fan et al., "DAPPLE", PPoPP 2021, section 4; Megatron-style state as in ZeRO, SC 2020.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <stagger/cluster/cluster.hpp>
#include <stagger/cluster/profile.hpp>
#include <stagger/collective/alpha_beta.hpp>
#include <stagger/collective/grouping/greedy.hpp>
#include <stagger/collective/grouping/optimal.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/list.hpp>
#include <stagger/core/math.hpp>
#include <stagger/placement/fill.hpp>
#include <stagger/plan/latency.hpp>

namespace stagger::plan {

/// Bytes of parameters, gradients and optimizer state for each byte of parameters.
namespace memory_factor {
inline constexpr double sgd = 2;
inline constexpr double adam = 4;  ///< two moments
}  // namespace memory_factor

/// The run that a plan is made for.
struct Request {
  int batch = 0;       ///< samples of an iteration, >= 1
  int microbatch = 0;  ///< samples per device and microbatch; 0: the profile's batch
  double memory_factor = plan::memory_factor::adam;
  bool recompute = false;      ///< activation recomputation: keep only stage inputs
  std::vector<int> without{};  ///< devices that must not be used, such as lost ones
};

/// The properties of a stage's devices on which costs depend.
struct Group {
  int replicas = 1;
  std::uint64_t kinds = 1;  ///< bit k: a device of kind k is among them
  double capacity_bytes = 0;
  collective::CostLine all_reduce{};

  /// Whether all of its devices are of one kind.
  [[nodiscard]] constexpr bool alike() const noexcept { return (kinds & (kinds - 1)) == 0; }
};

/// The transfer of a microbatch from one group to the next, split evenly over both: the busiest
/// node's share over the links between nodes, or the largest message inside one.
struct Wire {
  double inter_startup_s = 0, inter_per_byte_s = 0;
  double intra_startup_s = 0, intra_per_byte_s = 0;

  [[nodiscard]] constexpr double seconds(double bytes) const noexcept {
    if (!(bytes > 0)) return 0;
    double const inter = inter_startup_s + inter_per_byte_s * bytes;
    double const intra = intra_startup_s + intra_per_byte_s * bytes;
    return inter > intra ? inter : intra;
  }
};

/// The bytes that a stage needs on each of its devices.
struct StageMemory {
  double static_bytes = 0;  ///< parameters, gradients, optimizer state
  double each_bytes = 0;    ///< for each microbatch in flight
  double once_bytes = 0;    ///< additionally, for the microbatch that is being recomputed

  [[nodiscard]] constexpr double bytes(int in_flight) const noexcept {
    return static_bytes + once_bytes + in_flight * each_bytes;
  }
  /// The most microbatches in flight that fit, up to `most`; 0: not even one.
  [[nodiscard]] constexpr int depth(double capacity, int most) const noexcept {
    double const left = capacity - static_bytes - once_bytes;
    if (left < each_bytes || left < 0) return 0;
    return each_bytes * most <= left ? most : static_cast<int>(left / each_bytes);
  }
};

/// A profile, a cluster and a request, checked, with prefix sums from which costs of stages are
/// computed quickly.
class Workload {
 public:
  /// @throws Error  bad_data for an invalid profile or cluster, bad_configuration for an invalid
  ///                request
  Workload(cluster::Profile profile, cluster::Cluster cluster, Request request)
      : profile_(std::move(profile)), cluster_(std::move(cluster)), request_(std::move(request)) {
    cluster::require_profile(profile_);
    cluster::require_cluster(cluster_);
    check();
    sum();
  }

  [[nodiscard]] cluster::Profile const& profile() const noexcept { return profile_; }
  [[nodiscard]] cluster::Cluster const& cluster() const noexcept { return cluster_; }
  [[nodiscard]] Request const& request() const noexcept { return request_; }
  [[nodiscard]] int layers() const noexcept { return profile_.size(); }
  /// Devices that may be used, node by node, rising.
  [[nodiscard]] std::vector<int> const& devices() const noexcept { return devices_; }
  /// The occupancy of their nodes, with all of them free.
  [[nodiscard]] placement::Occupancy const& free() const noexcept { return free_; }
  /// Samples per device and microbatch.
  [[nodiscard]] int microbatch() const noexcept {
    return request_.microbatch > 0 ? request_.microbatch : profile_.batch;
  }

  /// @param ids  devices, rising, none twice
  [[nodiscard]] Group group(std::span<int const> ids) const {
    Group g{.replicas = static_cast<int>(ids.size()), .kinds = 0};
    for (int const id : ids) {
      auto const memory = static_cast<double>(cluster_.device(id).memory_bytes);
      g.capacity_bytes = g.kinds == 0 ? memory : std::min(g.capacity_bytes, memory);
      g.kinds |= std::uint64_t{1} << kind_[id];
    }
    if (g.replicas > 1) {
      auto const& link = cluster_.link_among(ids);
      double const others = g.replicas - 1;
      g.all_reduce = {2 * others * link.alpha_s,
                      2 * others / g.replicas / link.all_reduce_rate(g.replicas)};
    }
    return g;
  }

  /// @param from, to  devices of two stages in a row
  [[nodiscard]] Wire wire(std::span<int const> from, std::span<int const> to) const {
    Wire w;
    List<double> out(cluster_.intra.size(), 0.0), in = out;  // [nodes] shares
    auto const a = from.size(), b = to.size();
    for (std::size_t i = 0, j = 0; i < a && j < b;) {  // the overlap of rows i/a and j/b
      std::size_t const begin = std::max(i * b, j * a), end = std::min((i + 1) * b, (j + 1) * a);
      double const share = static_cast<double>(end - begin) / static_cast<double>(a * b);
      int const m = cluster_.device(from[i]).node, n = cluster_.device(to[j]).node;
      if (m == n) {
        auto const& link = cluster_.inside(m);
        w.intra_startup_s = std::max(w.intra_startup_s, link.alpha_s);
        w.intra_per_byte_s = std::max(w.intra_per_byte_s, share / link.bytes_per_s);
      } else {
        w.inter_startup_s = cluster_.inter.alpha_s;
        out[m] += share;
        in[n] += share;
      }
      bool const next_i = (i + 1) * b <= (j + 1) * a, next_j = (j + 1) * a <= (i + 1) * b;
      if (next_i) ++i;
      if (next_j) ++j;
    }
    for (std::size_t n = 0; n < out.size(); ++n)
      w.inter_per_byte_s =
          std::max(w.inter_per_byte_s, std::max(out[n], in[n]) / cluster_.inter.bytes_per_s);
    return w;
  }

  /// Seconds of the layers [first, end) for `slice` samples on the slowest kind of device of a
  /// group.
  [[nodiscard]] StageTime time(int first, int end, std::uint64_t kinds, double slice,
                               bool recompute) const noexcept {
    StageTime t;
    for (int k = 0; kinds >> k != 0; ++k) {
      if ((kinds >> k & 1) == 0) continue;
      double const* const forward = forward_[k].data();
      double const* const backward = backward_[k].data();
      t.forward_s = std::max(t.forward_s, forward[end] - forward[first]);
      t.backward_s = std::max(t.backward_s, backward[end] - backward[first]);
    }
    t.forward_s *= slice;
    t.backward_s *= slice;
    if (recompute) t.recompute_s = t.forward_s;
    t.backward_s += t.recompute_s;
    return t;
  }

  [[nodiscard]] double parameter_bytes(int first, int end) const noexcept {
    return parameters_[end] - parameters_[first];
  }

  /// Bytes of `samples` samples that cross the boundary before a layer; 0 for the first.
  [[nodiscard]] double boundary_bytes(int layer, double samples) const noexcept {
    if (layer == 0) return 0;
    auto const bytes = static_cast<double>(profile_.layer(layer - 1).activation_bytes);
    return bytes * samples / profile_.batch;
  }

  [[nodiscard]] StageMemory memory(int first, int end, double slice,
                                   bool recompute) const noexcept {
    StageMemory m{.static_bytes = parameter_bytes(first, end) * request_.memory_factor};
    double const stash = (stash_[end] - stash_[first]) * slice;
    m.each_bytes = recompute ? boundary_bytes(first, slice) : stash;
    m.once_bytes = recompute ? stash : 0;
    return m;
  }

  /// Seconds that a stage's all-reduce adds after its last backward: all of it, or the part that
  /// does not overlap with that backward if gradients are sent in groups of layers.
  [[nodiscard]] double gradients_s(int first, int end, Group const& group, double slice,
                                   bool recompute, bool overlapped) const {
    double const bytes = parameter_bytes(first, end);
    double const whole =
        bytes > 0 ? group.all_reduce.startup_s + group.all_reduce.per_byte_s * bytes : 0;
    if (!overlapped || group.replicas < 2 || !(bytes > 0)) return whole;
    std::vector<double> backward;
    std::vector<std::uint64_t> gradients;
    for (int l = first; l < end; ++l) {
      StageTime const t = time(l, l + 1, group.kinds, slice, recompute);
      backward.push_back(t.backward_s);
      gradients.push_back(profile_.layer(l).parameter_bytes);
    }
    collective::Backward const layers{0, backward, gradients};
    bool const large = backward.size() > 512;  // the exact grouping is quadratic
    auto const groups = large ? collective::grouping::Greedy{}.groups(layers, group.all_reduce)
                              : collective::grouping::Optimal{}.groups(layers, group.all_reduce);
    return std::min(whole, collective::evaluate(layers, groups, group.all_reduce).exposed_s);
  }

  /// Seconds of the whole batch on the fastest device alone.
  [[nodiscard]] double one_device_s() const noexcept {
    double best = 0;
    for (std::size_t k = 0; k < forward_.size(); ++k) {
      double const t = (forward_[k].back() + backward_[k].back()) * request_.batch;
      best = k == 0 ? t : std::min(best, t);
    }
    return best;
  }

 private:
  void check() {
    auto const refuse = [](std::string const& s) { raise(Errc::bad_configuration, s); };
    if (request_.batch < 1)
      refuse(text("a batch of ", request_.batch, " samples cannot be planned; give 1 or more"));
    if (int const most = 1 << 25;
        request_.batch > most)  // simulations take time in proportion to it
      refuse(text("a batch of ", request_.batch, " samples cannot be planned; give at most ", most,
                  ", since a larger one takes the same plan in more microbatches"));
    if (request_.microbatch < 0)
      refuse(text(
          "microbatches of ", request_.microbatch,
          " samples per device cannot be planned; give 1 or more, or 0 for the profile's batch"));
    if (!stagger::detail::math::finite_and_not_negative(request_.memory_factor))
      refuse(text("a memory factor of ", request_.memory_factor,
                  " cannot be; give a finite number that is not negative, such as 4 for Adam"));
    List<bool> usable(cluster_.devices.size(), true);
    for (int const id : request_.without) {
      if (id < 0 || id >= cluster_.size())
        refuse(text("device ", id, " cannot be left out; there are devices 0 to ",
                    cluster_.size() - 1));
      usable[id] = false;
    }
    List<int> count(cluster_.intra.size(), 0);  // [nodes]
    for (int d = 0; d < cluster_.size(); ++d) {
      if (!usable[d]) continue;
      devices_.push_back(d);
      ++count[cluster_.device(d).node];
    }
    free_.size.assign(count.begin(), count.end());
    free_.taken.assign(count.size(), 0);
    if (devices_.empty()) refuse("every device is left out; leave one to plan for");
  }

  void sum() {
    std::vector<int> one_of;  // a device of each kind
    for (int d = 0; d < cluster_.size(); ++d) {
      auto const same = std::find_if(one_of.begin(), one_of.end(), [&](int other) {
        return cluster_.device(other).kind == cluster_.device(d).kind;
      });
      kind_.push_back(static_cast<int>(same - one_of.begin()));
      if (same == one_of.end()) one_of.push_back(d);
    }
    if (one_of.size() > 64)
      raise(Errc::bad_configuration, "devices of ", one_of.size(),
            " kinds; a planner tells up to 64 apart");
    auto const N = profile_.layers.size();
    forward_.assign(one_of.size(), List<double>(N + 1, 0.0));
    backward_ = forward_;
    parameters_.assign(N + 1, 0.0);
    stash_.assign(N + 1, 0.0);
    for (std::size_t l = 0; l < N; ++l) {
      auto const& layer = profile_.layers[l];
      parameters_[l + 1] = parameters_[l] + static_cast<double>(layer.parameter_bytes);
      stash_[l + 1] = stash_[l] + static_cast<double>(layer.stash()) / profile_.batch;
      for (std::size_t k = 0; k < one_of.size(); ++k) {
        auto const t = cluster_.times(layer, one_of[k]);
        forward_[k][l + 1] = forward_[k][l] + t.forward_s / profile_.batch;
        backward_[k][l + 1] = backward_[k][l] + t.backward_s / profile_.batch;
      }
    }
  }

  cluster::Profile profile_;
  cluster::Cluster cluster_;
  Request request_;
  std::vector<int> devices_{};
  placement::Occupancy free_{};
  // Prefix sums over the layers before each boundary.
  List<int> kind_{};               ///< [devices]
  List<List<double>> forward_{};   ///< [kinds][layers + 1] seconds of one sample
  List<List<double>> backward_{};  ///< [kinds][layers + 1] seconds of one sample
  List<double> parameters_{};      ///< [layers + 1] bytes
  List<double> stash_{};           ///< [layers + 1] bytes of one sample
};

}  // namespace stagger::plan
