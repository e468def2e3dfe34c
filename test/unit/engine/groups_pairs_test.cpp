// SPDX-License-Identifier: Apache-2.0
#include <stagger/engine/groups.hpp>

#include "catch.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include <stagger/core/random.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/schedule/zero_bubble_h1.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/train/pipeline.hpp>

#include "full.hpp"
#include "split_model.hpp"

using namespace split_model;

namespace {

/// The values of everything that may differ: members, groups, the pattern of what is split, pairs,
/// microbatches for each member, the schedule, recomputation, positions, threads.
constexpr std::array<std::size_t, 9> values{5, 2, 16, 2, 3, 3, 2, 2, 3};
using Choice = std::array<std::size_t, values.size()>;

Case case_of(Choice const& of) {
  using namespace sg::schedule;
  constexpr std::array sizes{1, 2, 3, 4, 8};
  int const members = sizes[of[0]];
  Case made_of{.pattern = static_cast<unsigned>(of[2]),
               .members = members,
               .groups = 1 + static_cast<int>(of[1]),
               .pairs = of[3] == 1,
               .microbatches = std::array{1, members, 2 * members}[of[4]]};
  made_of.schedule = std::array{made(GPipe{}), made(OneFOneB{}), made(ZeroBubbleH1{})}[of[5]];
  made_of.options.recompute = of[6] == 1;
  if (of[7] == 1) made_of.cuts = {4};
  return made_of;
}

/// So many choices at random that each two values of different kinds meet; in full, each three.
std::vector<Choice> choices() {
  std::set<std::array<std::size_t, 6>> met;
  auto const meet = [&](Choice const& of) {
    std::size_t const before = met.size();
    for (std::size_t a = 0; a < values.size(); ++a)
      for (std::size_t b = 0; b < a; ++b)
        for (std::size_t c = 0; c < (full() ? b : 1); ++c)
          met.insert({a, b, c, of[a], of[b], full() ? of[c] : 0});
    return met.size() > before;
  };
  std::size_t end = 0;
  for (std::size_t a = 0; a < values.size(); ++a)
    for (std::size_t b = 0; b < a; ++b)
      for (std::size_t c = 0; c < (full() ? b : 1); ++c)
        end += values[a] * values[b] * (full() ? values[c] : 1);
  std::vector<Choice> chosen;
  for (std::uint64_t i = 0; met.size() < end; ++i) {
    Choice of{};
    for (std::size_t kind = 0; kind < values.size(); ++kind)
      of[kind] = sg::random_bits(5, {i, kind}) % values[kind];
    if (meet(of)) chosen.push_back(of);
  }
  return chosen;
}

/// A step beside one device, and in virtual time.
template <class T> double apart(Case const& of, int threads) {
  auto train = pipeline<T>(sg::host::Threads{threads}, of);
  auto clocked =
      pipeline<T>(sg::sim::VirtualClock{.exchange = {0.25, 1e-3}, .jitter = 0.5, .seed = 3}, of);
  auto one = one_device<T>(of);
  auto const data = batch<T>(0, of.microbatches, 17);
  double const loss = sg::run(train.step(data)).loss;
  CHECK(loss == Approx(one.step(data).loss).epsilon(sizeof(T) == 4 ? 1e-5 : 1e-12));
  CHECK(loss == sg::run(clocked.step(data)).loss);
  CHECK(bits(train) == bits(clocked));
  return difference<T>(train, one);  // of values and of the momentum, which is the gradient
}

}  // namespace

TEST_CASE("engine/groups: whichever two options meet, the gradients of one device", "[engine]") {
  for (Choice const& choice : choices()) {
    Case const of = case_of(choice);
    int const threads = std::array{1, 2, 4}[choice.back()];
    CAPTURE(choice, threads);
    REQUIRE(apart<double>(of, threads) < 1e-12);
    REQUIRE(apart<float>(of, threads) < 1e-5);
  }
}
