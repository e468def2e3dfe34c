// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Searches for an order of the devices: an exact one, for cuts that keep every stage below
///         a bound, and a local one.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <stagger/partition/costs.hpp>
#include <stagger/partition/detail/given_order.hpp>

namespace stagger::partition::detail {

/// HetPipe's table over (devices used, layers placed, next device), with one bit for each number of
/// layers placed. Devices of one class (same times, node, memory) are interchangeable. Of the
/// previous device it only matters whether there is one and whether it is in the same node.
class AnyOrder {
  // Templates stand first: clang evaluates them in constant expressions only where it has seen
  // them.
  [[nodiscard]] constexpr bool any(std::uint64_t const* bits) const {
    return std::any_of(bits, bits + words_, [](std::uint64_t w) { return w != 0; });
  }
  template <class Use> constexpr void for_each_bit(std::uint64_t const* bits, Use&& use) const {
    for (std::size_t w = 0; w < words_; ++w)
      for (std::uint64_t left = bits[w]; left != 0; left &= left - 1)
        use(static_cast<int>(w * 64) + std::countr_zero(left));
  }

 public:
  /// @param  in_flight    minibatches, for the memory
  /// @param  most_states  if the table would be larger, `possible()` is false
  constexpr AnyOrder(Costs const& costs, int in_flight, std::size_t most_states)
      : costs_(costs),
        in_flight_(in_flight),
        layers_(costs.layers()),
        words_(at(layers_) / 64 + 1) {
    for (int d = 0; d < costs.devices(); ++d) {
      auto found = std::find_if(classes_.begin(), classes_.end(), [&](Class const& c) {
        return costs.place(c.devices.front()).alike(costs.place(d));
      });
      if (found == classes_.end()) found = classes_.insert(found, Class{});
      found->devices.push_back(d);
    }
    states_ = 1;
    for (Class& c : classes_) {
      c.stride = states_;
      if (states_ > most_states) break;
      states_ *= c.devices.size() + 1;
    }
    possible_ = words() <= most_states;
  }

  [[nodiscard]] constexpr bool possible() const noexcept { return possible_; }
  /// Size of the table.
  [[nodiscard]] constexpr std::size_t words() const noexcept {
    return states_ * classes_.size() * 2 * words_;
  }

  /// An order of the devices for which cuts exist that keep all stages at or below `most`; empty if
  /// there is none. Exact.
  [[nodiscard]] constexpr std::vector<int> order(double most) {
    prepare(most);
    reached_.assign(words(), 0);
    std::vector<std::uint64_t> out(words_, 0);
    std::vector<std::uint64_t> start(words_, 0);
    start[0] = 1;
    std::vector<std::size_t> used(classes_.size(), 0);
    for (std::size_t state = 0; state < states_; ++state) {
      std::size_t rest = state;
      int placed = 0;
      for (std::size_t c = 0; c < classes_.size(); ++c) {
        used[c] = rest % (classes_[c].devices.size() + 1);
        rest /= classes_[c].devices.size() + 1;
        placed += static_cast<int>(used[c]);
      }
      if (placed >= stages()) continue;
      double rates = 0;  // of the devices that are not used
      for (std::size_t c = 0; c < classes_.size(); ++c)
        rates += rates_[c] * static_cast<double>(classes_[c].devices.size() - used[c]);
      for (std::size_t c = 0; c < classes_.size(); ++c) {
        if (used[c] == classes_[c].devices.size()) continue;
        for (std::size_t in = 0; in < 2; ++in) {
          std::uint64_t const* const from =
              placed == 0 ? start.data() : &reached_[index(state, c, in)];
          if (placed == 0 && in == 1) continue;  // there is no previous stage
          std::size_t const way = placed == 0 ? 2 : in;
          if (!any(from)) continue;
          if (placed + 1 == stages()) {
            if (finishes(c, way, from)) return trace(state, c, way, used);
            continue;
          }
          for (std::size_t same = 0; same < 2; ++same) {
            std::fill(out.begin(), out.end(), 0);
            for_each_bit(from, [&](int j) {
              std::uint64_t const* const ends = &reach_[step(c, way, same, j)];
              for (std::size_t w = 0; w < words_; ++w) out[w] |= ends[w];
            });
            clear_below(out, rates - rates_[c], most);
            if (!any(out.data())) continue;
            for (std::size_t next = 0; next < classes_.size(); ++next) {
              if (used[next] + (next == c ? 1 : 0) >= classes_[next].devices.size()) continue;
              if ((node(next) == node(c)) != (same == 1)) continue;
              std::uint64_t* const to = &reached_[index(state + classes_[c].stride, next, same)];
              for (std::size_t w = 0; w < words_; ++w) to[w] |= out[w];
            }
          }
        }
      }
    }
    return {};
  }

 private:
  struct Class {
    std::vector<int> devices{};
    std::size_t stride = 0;
  };

  [[nodiscard]] constexpr int stages() const { return costs_.devices(); }
  [[nodiscard]] constexpr int node(std::size_t c) const {
    return costs_.place(classes_[c].devices.front()).node;
  }
  [[nodiscard]] constexpr std::size_t index(std::size_t state, std::size_t c,
                                            std::size_t in) const {
    return ((state * classes_.size() + c) * 2 + in) * words_;
  }
  /// The index in reach_ of the ends of a stage.
  /// @param way   the previous device: 0 in another node, 1 in the same, 2 there is none
  /// @param same  whether the next device is in the same node
  [[nodiscard]] constexpr std::size_t step(std::size_t c, std::size_t way, std::size_t same,
                                           int j) const {
    return (((c * 3 + way) * 2 + same) * at(layers_ + 1) + at(j)) * words_;
  }
  /// Stage times depend only on the links to the neighbours.
  [[nodiscard]] constexpr double seconds(std::size_t c, int i, int j, std::size_t way,
                                         int same) const {
    int const device = classes_[c].devices.front();
    cluster::Link const& own = costs_.inside(node(c));
    double t = costs_.compute_s(device, i, j);
    if (way < 2) t += (way == 1 ? own : costs_.inter).transfer_s(costs_.boundary_bytes[at(i)]);
    if (same >= 0) t += (same == 1 ? own : costs_.inter).transfer_s(costs_.boundary_bytes[at(j)]);
    return t;
  }

  /// Computes the possible ends of each stage for each beginning.
  constexpr void prepare(double most) {
    reach_.assign(classes_.size() * 6 * at(layers_ + 1) * words_, 0);
    last_.assign(classes_.size() * 3 * words_, 0);
    std::vector<int> each;  // a device of each class
    for (Class const& c : classes_) each.push_back(c.devices.front());
    Fastest const fastest(costs_, each);
    rates_ = fastest.rates;
    cheapest_until_.assign(1, 0);
    for (double const least : fastest.least_s)
      cheapest_until_.push_back(cheapest_until_.back() + least);
    receive_ = layers_ == 1 ? 0 : no_time;
    for (int l = 1; l < layers_; ++l) {
      double const bytes = costs_.boundary_bytes[at(l)];
      receive_ = std::min(receive_, costs_.inter.transfer_s(bytes));
      for (std::size_t c = 0; c < classes_.size(); ++c)
        receive_ = std::min(receive_, costs_.inside(node(c)).transfer_s(bytes));
    }
    for (std::size_t c = 0; c < classes_.size(); ++c) {
      int const device = classes_[c].devices.front();
      auto const fits = [&](int i, int j, int stage) {
        return costs_.memory_bytes(i, j, stage, stages(), in_flight_) <=
               costs_.place(device).memory_bytes;
      };
      for (int i = 0; i < layers_; ++i) {
        bool const ends = fits(i, layers_, stages() - 1);
        for (std::size_t way = 0; way < 3 && ends; ++way)
          if (seconds(c, i, layers_, way, -1) <= most)
            last_[(c * 3 + way) * words_ + at(i) / 64] |= std::uint64_t{1} << (i % 64);
        // Of the stages but the last, the number does not matter.
        for (int j = i + 1; j < layers_ && stages() > 1; ++j) {
          if (costs_.compute_s(device, i, j) > most || !fits(i, j, 0)) break;
          for (std::size_t way = 0; way < 3; ++way)
            for (std::size_t same = 0; same < 2; ++same)
              if (seconds(c, i, j, way, static_cast<int>(same)) <= most)
                reach_[step(c, way, same, i) + at(j) / 64] |= std::uint64_t{1} << (j % 64);
        }
      }
    }
  }

  /// Drops ends from which the remaining devices cannot finish within the bound: each of them,
  /// except the last, receives from both sides.
  constexpr void clear_below(std::vector<std::uint64_t>& out, double rates, double most) const {
    double const can = rates * std::max(most - 2 * receive_, 0.0) + receive_;
    double const done = cheapest_until_.back() - can * (1 + 1e-9);
    int least =
        static_cast<int>(std::lower_bound(cheapest_until_.begin(), cheapest_until_.end(), done) -
                         cheapest_until_.begin());
    for (std::size_t w = 0; w < words_ && least > 0; ++w, least -= 64)
      out[w] &= least >= 64 ? 0 : ~std::uint64_t{0} << least;
  }

  [[nodiscard]] constexpr bool finishes(std::size_t c, std::size_t way,
                                        std::uint64_t const* from) const {
    for (std::size_t w = 0; w < words_; ++w)
      if ((from[w] & last_[(c * 3 + way) * words_ + w]) != 0) return true;
    return false;
  }

  /// The devices, from the last stage back to the first.
  [[nodiscard]] constexpr std::vector<int> trace(std::size_t state, std::size_t c, std::size_t way,
                                                 std::vector<std::size_t> used) const {
    std::vector<std::size_t> kinds{c};
    int placed = stages() - 1;
    int j = -1;  // where the stage of class c begins
    if (placed > 0)
      for_each_bit(&reached_[index(state, c, way)], [&](int i) {
        if (j < 0 && (last_[(c * 3 + way) * words_ + at(i) / 64] >> (i % 64) & 1) != 0) j = i;
      });
    while (placed > 0) {
      bool found = false;
      for (std::size_t b = 0; b < classes_.size() && !found; ++b) {  // the stage before
        if (used[b] == 0 || (node(b) == node(c)) != (way == 1)) continue;
        std::size_t const before = state - classes_[b].stride;
        for (std::size_t in = placed == 1 ? 2 : 0; in < (placed == 1 ? 3U : 2U) && !found; ++in) {
          auto const hit = [&](int i) {
            return (reach_[step(b, in, way, i) + at(j) / 64] >> (j % 64) & 1) != 0;
          };
          int from = -1;
          if (placed == 1) {
            if (hit(0)) from = 0;
          } else {
            for_each_bit(&reached_[index(before, b, in)], [&](int i) {
              if (from < 0 && hit(i)) from = i;
            });
          }
          if (from < 0) continue;
          found = true;
          --used[b];
          state = before;
          j = from;
          c = b;
          way = in;
        }
      }
      kinds.push_back(c);
      --placed;
    }
    std::vector<int> result;
    std::vector<std::size_t> taken(classes_.size(), 0);
    for (std::size_t i = kinds.size(); i-- > 0;)
      result.push_back(classes_[kinds[i]].devices[taken[kinds[i]]++]);
    return result;
  }

  Costs const& costs_;
  int in_flight_;
  int layers_;
  std::size_t words_;
  bool possible_ = false;
  std::size_t states_ = 0;
  double receive_ = 0;  // the cheapest transfer
  std::vector<Class> classes_{};
  std::vector<std::uint64_t> reach_{}, last_{}, reached_{};
  std::vector<double> rates_{}, cheapest_until_{};
};

/// A local search for a good order of the devices, without a proof that it is the best: swaps and
/// moves devices while that helps, then perturbs the best order a little and continues.
/// Deterministic.
/// @param least   lower bound of the bottleneck
/// @param orders  how many may be tried
/// @param start   all devices
/// @return        the best order that it has found, and its bottleneck
[[nodiscard]] constexpr std::pair<std::vector<int>, double> climb(Costs const& costs, int in_flight,
                                                                  double least, long long orders,
                                                                  std::vector<int> const& start) {
  auto const bottleneck = [&](std::vector<int> const& order, double most) {
    --orders;
    return best_of_order(costs, order, in_flight, least, most);
  };
  std::uint64_t random = 1;
  auto const below = [&](std::size_t n) {
    random = random * 6364136223846793005U + 1442695040888963407U;
    return (random >> 33) % n;
  };
  auto const descend = [&](std::vector<int> order) {
    double value = bottleneck(order, no_time);
    // Keeps a change of the order if that lowers the bottleneck.
    auto const improves = [&](auto const& change) {
      std::vector<int> changed = order;
      change(changed.begin());
      double const tried = bottleneck(changed, value);
      if (!(tried < value)) return false;
      order.swap(changed);
      value = tried;
      return true;
    };
    int const size = static_cast<int>(order.size());
    for (bool again = true; again && orders > 0;) {
      again = false;
      for (int a = 0; a < size && orders > 0; ++a)
        for (int b = a + 1; b < size && orders > 0; ++b) {
          if (costs.place(order[at(a)]).alike(costs.place(order[at(b)]))) continue;
          if (improves([&](auto begin) { std::swap(begin[a], begin[b]); }) ||
              (b > a + 1 &&  // otherwise a move is a swap
               (improves(
                    [&](auto begin) { std::rotate(begin + a, begin + a + 1, begin + b + 1); }) ||
                improves([&](auto begin) { std::rotate(begin + a, begin + b, begin + b + 1); }))))
            again = true;
        }
    }
    return std::pair(order, value);
  };
  auto best = descend(start);
  while (orders > 0 && best.second > least && start.size() > 1) {
    std::vector<int> shaken = best.first;
    for (int i = 0; i < 3; ++i)
      std::swap(shaken[below(shaken.size())], shaken[below(shaken.size())]);
    if (auto found = descend(shaken); found.second <= best.second) best = std::move(found);
  }
  return best;
}

}  // namespace stagger::partition::detail
