// SPDX-License-Identifier: Apache-2.0
#pragma once
// What every communicator must do, whatever carries the bytes. Each law runs on one rank and
// returns the first fault it saw, or nothing; so it may run on any thread and in any process.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <stagger/collective/communicator.hpp>
#include <stagger/collective/decision.hpp>
#include <stagger/collective/handshake.hpp>
#include <stagger/collective/sharded_update.hpp>
#include <stagger/core/text.hpp>

#include "sanitized.hpp"

namespace collective_test {

using namespace stagger::collective;

inline constexpr double patience_s = 30;

/// A value whose sums depend on the order they are taken in.
template <class T> [[nodiscard]] T value_of(int rank, std::size_t index) {
  std::uint64_t h = (index + 1) * 0x9e3779b97f4a7c15u +
                    static_cast<std::uint64_t>(rank + 1) * 0xbf58476d1ce4e5b9u;
  h ^= h >> 29;
  h *= 0x94d049bb133111ebu;
  h ^= h >> 32;
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(std::ldexp(static_cast<double>(h % 100003) - 50001,
                                     static_cast<int>(h / 100003 % 40) - 20));
  } else {
    return static_cast<T>(h);
  }
}

template <class T> [[nodiscard]] std::vector<T> values_of(int rank, std::size_t count) {
  std::vector<T> x(count);
  for (std::size_t i = 0; i < count; ++i) x[i] = value_of<T>(rank, i);
  return x;
}

/// The reduction over `ranks` in rank order, element by element.
template <class T>
[[nodiscard]] std::vector<T> reduced(Reduction reduction, int ranks, std::size_t count) {
  auto all = values_of<T>(0, count);
  for (int r = 1; r < ranks; ++r) {
    for (std::size_t i = 0; i < count; ++i) {
      T const v = value_of<T>(r, i);
      if (reduction == Reduction::min)
        all[i] = v < all[i] ? v : all[i];
      else if (reduction == Reduction::max)
        all[i] = all[i] < v ? v : all[i];
      else if constexpr (std::is_floating_point_v<T>)
        all[i] = all[i] + v;
      else
        all[i] = static_cast<T>(static_cast<std::uint64_t>(all[i]) + static_cast<std::uint64_t>(v));
    }
  }
  return all;
}

template <class T> [[nodiscard]] bool same_bits(std::span<T const> a, std::span<T const> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}
template <class T> [[nodiscard]] bool same_bits(std::vector<T> const& a, std::vector<T> const& b) {
  return same_bits(std::span<T const>(a), std::span<T const>(b));
}

inline constexpr std::size_t counts[] = {0, 1, 3, 448, 896, 897, 4096, 70001, 600011};

template <class T, Communicator C> [[nodiscard]] std::string sums_in_rank_order(C& c) {
  for (Reduction const how : {Reduction::sum, Reduction::min, Reduction::max}) {
    for (std::size_t const n : counts) {
      if (n > 100000 && sizeof(T) < 8) continue;  // one type has many segments
      if (sanitized && n > 4096 && (std::is_integral_v<T> || how != Reduction::sum)) continue;
      auto const want = reduced<T>(how, c.size(), n);
      auto x = values_of<T>(c.rank(), n);
      c.all_reduce(std::span(x), how).wait(patience_s);
      if (!same_bits(x, want))
        return stagger::text("all_reduce of ", n, ", reduction ", static_cast<int>(how));
      x = values_of<T>(c.rank(), n);
      c.reduce_scatter(std::span(x), how).wait(patience_s);
      Slice const own = slice(n, c.rank(), c.size());
      if (!same_bits<T>(std::span<T const>(x).subspan(own.first, own.size()),
                        std::span<T const>(want).subspan(own.first, own.size()))) {
        return stagger::text("reduce_scatter of ", n);
      }
      c.all_gather(std::span(x)).wait(patience_s);
      if (!same_bits(x, want)) return stagger::text("all_gather of ", n);
    }
  }
  return {};
}

template <Communicator C> [[nodiscard]] std::string broadcasts(C& c) {
  for (int root = 0; root < c.size(); ++root) {
    for (std::size_t const n : counts) {
      auto x = values_of<double>(c.rank(), n);
      c.broadcast(std::span(x), root).wait(patience_s);
      if (!same_bits(x, values_of<double>(root, n)))
        return stagger::text("broadcast of ", n, " from ", root);
    }
  }
  return {};
}

/// A ring of messages of several sizes in flight at once, and a message to oneself.
template <Communicator C> [[nodiscard]] std::string messages(C& c) {
  int const next = (c.rank() + 1) % c.size();
  int const before = (c.rank() + c.size() - 1) % c.size();
  std::vector<std::vector<float>> out, in;
  std::vector<typename C::operation_type> operations;
  for (std::size_t i = 0; i < std::size(counts); ++i) {
    out.push_back(values_of<float>(c.rank(), counts[i]));
    in.emplace_back(counts[i]);
  }
  auto group = c.group();
  for (std::size_t i = 0; i < out.size(); ++i) {
    operations.push_back(c.send(group, std::span<float const>(out[i]), next));
    operations.push_back(c.receive(group, std::span(in[i]), before));
  }
  group.submit();
  for (auto& op : operations) op.wait(patience_s);
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!same_bits(in[i], values_of<float>(before, counts[i]))) return stagger::text("message ", i);
  }
  int self[2] = {c.rank(), -1};
  auto alone = c.group();
  auto to = c.send(alone, std::span<int const>(self, 1), c.rank());
  auto from = c.receive(alone, std::span(self + 1, 1), c.rank());
  alone.submit();
  to.wait(patience_s);
  from.wait(patience_s);
  return self[1] == c.rank() ? std::string() : "a message to oneself";
}

/// Odd and even ranks, in descending order, use their parts at the same time as the whole; rank 0
/// of four and more stays outside.
template <Communicator C> [[nodiscard]] std::string splits(C& c) {
  bool const outside = c.size() > 3 && c.rank() == 0;
  C part;
  c.split(outside ? -1 : c.rank() % 2, -c.rank(), part).wait(patience_s);
  int members = 0;
  int ahead = 0;
  double want = 0;
  for (int r = c.size() > 3 ? 1 : 0; r < c.size(); ++r) {
    if (r % 2 != c.rank() % 2) continue;
    ++members;
    want += r + 1;
    if (r > c.rank()) ++ahead;
  }
  std::vector<double> whole(5000, 1);
  auto all = c.all_reduce(std::span(whole));
  if (outside) {
    if (part) return "a rank without colour is in a part";
  } else {
    if (part.size() != members || part.rank() != ahead) return "size or rank of a part";
    std::vector<double> x(3000, c.rank() + 1);
    part.all_reduce(std::span(x)).wait(patience_s);
    if (x.front() != want || x.back() != want) return "sum of a part";
    C half;
    part.split(part.rank() / 2, 0, half).wait(patience_s);
    double one = 1;
    half.all_reduce(std::span(&one, 1)).wait(patience_s);
    if (one != half.size()) return "sum of a part of a part";
  }
  all.wait(patience_s);
  return whole[4999] == c.size() ? std::string() : "sum of the whole beside its parts";
}

/// J7: calls of one rank may be waited for in any order, and many may be under way.
template <Communicator C> [[nodiscard]] std::string overlapping(C& c) {
  std::vector<std::vector<float>> x;
  std::vector<typename C::operation_type> operations;
  for (std::size_t i = 0; i < 20; ++i) x.push_back(values_of<float>(c.rank(), 100 + 3000 * i));
  for (auto& v : x) operations.push_back(c.all_reduce(std::span(v), Reduction::sum));
  for (std::size_t i = operations.size(); i-- > 0;)
    operations[c.rank() % 2 == 0 ? i : operations.size() - 1 - i].wait(patience_s);
  for (auto const& v : x) {
    if (!same_bits(v, reduced<float>(Reduction::sum, c.size(), v.size())))
      return stagger::text("call of ", v.size());
  }
  return {};
}

template <Communicator C> [[nodiscard]] std::string bytes_travel(C& c) {
  std::vector<std::byte> x(static_cast<std::size_t>(c.size()) * 10, std::byte{0});
  Slice const own = slice(x.size(), c.rank(), c.size());
  for (std::size_t i = own.first; i < own.last; ++i) x[i] = static_cast<std::byte>(i * 7 + 1);
  c.all_gather(std::span(x)).wait(patience_s);
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] != static_cast<std::byte>(i * 7 + 1)) return stagger::text("byte ", i);
  }
  return {};
}

/// Code and words of what `call` throws.
template <class Call> [[nodiscard]] std::string thrown_by(Call&& call) {
  try {
    call();
  } catch (stagger::Error const& e) {
    return stagger::text("E", static_cast<int>(e.code()), " ", e.what());
  }
  return "nothing was thrown";
}
[[nodiscard]] inline std::string coded(stagger::Errc code) {
  return stagger::text("E", static_cast<int>(code), " ");
}

/// Ranks that have all alike start; else each reads the same sentence.
template <Communicator C> [[nodiscard]] std::string handshakes(C& c) {
  std::vector<Fact> facts{
      library_fact(), {"the model", "gpt 4 layers"}, {"the plan", "1f1b 2 x 2"}, {"the seed", ""}};
  agree(c, facts, patience_s);
  if (c.size() < 2) return {};
  auto changed = facts;
  bool const last = c.rank() == c.size() - 1;
  if (last) changed[2].value = "gpipe 4";
  auto words = thrown_by([&] { agree(c, changed, patience_s); });
  auto const want =
      coded(stagger::Errc::mismatch) +
      stagger::text("ranks disagree on the plan: rank 0 has '1f1b 2 x 2', rank ", c.size() - 1,
                    " has 'gpipe 4' (unlike rank 0: ", c.size() - 1,
                    "); start all ranks with one program, one model and the same options");
  if (words != want) return "another sentence: " + words;
  if (last) changed = {facts[0], facts[1], {"the schedule", "gpipe"}, facts[3]};
  words = thrown_by([&] { agree(c, last ? changed : facts, patience_s); });
  if (words.find("number 2 is 'the plan' on rank 0, but 'the schedule' on rank") ==
      std::string::npos)
    return words;
  if (last) changed.resize(2);
  words = thrown_by([&] { agree(c, last ? changed : facts, patience_s); });
  if (words.find("number 2 is 'the plan' on rank 0, but nothing on rank") == std::string::npos)
    return words;
  changed = facts;
  changed[1].value = std::string(1000, 'a') + (c.rank() == 0 ? "x" : "y");
  words = thrown_by([&] { agree(c, changed, patience_s); });
  if (words.find("ranks disagree on the model: rank 0 has 'aaa") == std::string::npos) return words;
  if (words.find("unlike rank 0: 1") == std::string::npos) return words;
  agree(c, facts, patience_s);  // the communicator is as good as before
  return {};
}

/// One rank decides; the others have the same list, also after a renewal at an agreed step.
template <Communicator C> [[nodiscard]] std::string decisions(C& c) {
  int const root = c.size() - 1;
  int measured = 0;
  Decision<double> decision(10, root);
  auto const make = [&] {
    ++measured;
    return std::vector<double>(static_cast<std::size_t>(measured * 3), measured + 0.5);
  };
  decision.decide(c, make, patience_s);
  if (decision.values() != std::vector<double>{1.5, 1.5, 1.5}) return "the first decision";
  for (std::uint64_t step = 1; step <= 40; ++step) {
    bool const renewed = decision.renew(
        c, step, [&] { return step == 20 || step == 30; }, make, patience_s);
    if (renewed != (step == 20 || step == 30)) return stagger::text("renewal at step ", step);
  }
  if (decision.values() != std::vector<double>(9, 3.5)) return "the renewed decision";
  if (measured != (c.rank() == root ? 3 : 0)) return "who measures";
  Decision<double> never;
  if (never.renew(
          c, 0, [] { return true; }, make, patience_s))
    return "a decision that is never renewed";
  Decision<double> empty;
  return empty.decide(
                  c, [] { return std::vector<double>{}; }, patience_s)
                 .empty()
             ? std::string()
             : "an empty decision";
}

/// Adam, element by element, with its state for a range of a group.
struct Adam {
  std::vector<std::vector<float>> first, second;  // by group
  int step = 0;

  void update(std::size_t group, std::size_t size, std::span<float const> g, std::span<float> w) {
    if (first.size() <= group) {
      first.resize(group + 1);
      second.resize(group + 1);
    }
    first[group].resize(size);
    second[group].resize(size);
    for (std::size_t i = 0; i < size; ++i) {
      float& m = first[group][i];
      float& v = second[group][i];
      m = 0.9f * m + 0.1f * g[i];
      v = 0.99f * v + 0.01f * g[i] * g[i];
      w[i] = w[i] - 0.01f * m / (std::sqrt(v) + 1e-6f);
    }
  }
  [[nodiscard]] std::size_t held() const {
    std::size_t n = 0;
    for (auto const& m : first) n += m.size();
    return n;
  }
};

/// Parameters after five steps with state on one replica each equal those of replicas that hold it
/// all, to the bit, and each replica holds its share of the state.
template <Communicator C> [[nodiscard]] std::string sharded_updates(C& c) {
  constexpr std::size_t sizes[] = {5, 4096, 0, 1, 70001};
  std::vector<std::vector<float>> whole, shards;
  for (std::size_t const n : sizes) {
    whole.push_back(values_of<float>(100, n));
    shards.push_back(whole.back());
  }
  Adam all, own;
  auto const step = [&](OwnShard<float> s) {
    own.update(s.group, s.slice.size(), s.gradients, s.parameters);
  };
  ShardedUpdate<C, float, decltype(step)> update(c, step);
  for (int k = 0; k < 5; ++k) {
    std::vector<std::vector<float>> gradients;
    for (std::size_t g = 0; g < whole.size(); ++g) {
      gradients.push_back(values_of<float>(c.rank() + 10 * k, sizes[g]));
      auto sum = values_of<float>(10 * k, sizes[g]);
      for (int r = 1; r < c.size(); ++r) {
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += value_of<float>(r + 10 * k, i);
      }
      all.update(g, sum.size(), sum, whole[g]);
    }
    for (std::size_t g = 0; g < whole.size(); ++g) {
      update.add(std::span(gradients[g]), std::span(shards[g]));
      if (static_cast<int>(g % 2) == c.rank() % 2) update.poll();  // ranks poll when they like
    }
    if (update.poll()) return "a step that was not sealed ended";
    update.seal();
    update.wait(patience_s);
    for (std::size_t g = 0; g < whole.size(); ++g) {
      if (!same_bits(whole[g], shards[g])) return stagger::text("group ", g, " of step ", k);
    }
  }
  std::size_t held = 0;
  for (std::size_t const n : sizes) held += slice(n, c.rank(), c.size()).size();
  return own.held() == held ? std::string() : "the state is not shared out";
}

/// Every law, by name.
template <Communicator C> struct Law {
  char const* name;
  std::string (*check)(C&);
};
template <Communicator C>
inline constexpr Law<C> laws[] = {
    {"float sums in rank order", &sums_in_rank_order<float, C>},
    {"double sums in rank order", &sums_in_rank_order<double, C>},
    {"int32 sums in rank order", &sums_in_rank_order<std::int32_t, C>},
    {"uint8 sums in rank order", &sums_in_rank_order<std::uint8_t, C>},
    {"broadcasts", &broadcasts<C>},
    {"messages", &messages<C>},
    {"splits", &splits<C>},
    {"overlapping calls", &overlapping<C>},
    {"bytes", &bytes_travel<C>},
    {"handshakes", &handshakes<C>},
    {"decisions", &decisions<C>},
    {"sharded updates", &sharded_updates<C>},
};

}  // namespace collective_test
