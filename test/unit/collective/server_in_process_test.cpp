// SPDX-License-Identifier: Apache-2.0
// Workers of a server in several parts. What a worker tells the parts reaches them at different times, here
// in every order that a seed draws.
#include <stagger/collective/detail/server_in_process.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/model/parameter.hpp>
#include <stagger/parameters/layer_parameters.hpp>
#include <stagger/parameters/parameter_link.hpp>

#include "full.hpp"
#include "sanitized.hpp"

namespace server_in_process_test {

namespace {

namespace sg = stagger;
namespace server = sg::collective::detail;
using sg::detail::any_failures;

/// What is on its way between a worker and a part.
struct Tells {
  enum Kind : std::uint8_t { begin, fail, answer, lost } what{};
  std::uint32_t stream = 0;
  std::uint32_t failures = any_failures;
};

struct Silent final : sg::detail::ParameterListener {
  void arrived(std::size_t, std::uint32_t) noexcept override {}
  void lost(std::exception_ptr) noexcept override {}
};

class Town {
 public:
  Town(std::uint64_t seed, int workers, int parts)
      : random_(seed), workers_(static_cast<std::size_t>(workers)) {
    sg::FixedArray<sg::detail::LayerParameters> layers(1);
    sg::List<sg::detail::ParameterDeclaration> declared;
    declared.push_back({.name = "w", .type = sg::ElementType::f64, .size = 0, .initial = {}});
    layers[0].adopt(std::move(declared), 0, 0);
    sg::List<std::uint64_t> digests;
    digests.push_back(server::values_digest(layers[0].values()));
    for (int p = 0; p < parts; ++p) {
      parts_.push_back(std::make_unique<server::ServerInProcess>(
          sg::collective::ServerOptions{.workers = workers}));
      for (int n = 0; n < workers; ++n) {
        routes_.push_back(std::make_unique<Route>());
        parts_.back()->join(n, {layers.data(), 1}, digests, {}, *routes_.back());
      }
    }
    for (Worker& worker : workers_) worker.first = draw(parts);
  }

  /// @param failures  how many workers fail by themselves
  void run(int failures) {
    for (int left = 3000; left > 0; --left) {
      if (left < 1000) failures = 0;  // all arrives, and all are in a stream in the end
      int const n = draw(static_cast<int>(workers_.size()));
      Worker& worker = workers_[static_cast<std::size_t>(n)];
      if (worker.state == Worker::idle) {
        begin(n);
      } else if (worker.state == Worker::running && failures > 0 && draw(8) == 0) {
        --failures;
        fail(n);
      }
      for (int moves = draw(4); moves >= 0; --moves) move();
    }
  }

  struct Worker {
    enum { idle, asks, running } state = idle;
    int first = 0;  // the part that it asks after how many failures its stream begins
    std::uint32_t stream = 0;
    int lost = 0;
  };
  [[nodiscard]] std::vector<Worker> const& workers() const { return workers_; }
  [[nodiscard]] std::uint32_t failures(std::size_t part) const {
    return parts_[part]->layers().failures(0);
  }

 private:
  /// Between a worker and a part.
  struct Route final : sg::detail::ParameterListener {
    std::deque<Tells> to_part, to_worker;
    std::uint32_t stream = 0;  // the last one that the part has heard of
    void arrived(std::size_t, std::uint32_t) noexcept override {}
    void lost(std::exception_ptr) noexcept override { to_worker.push_back({Tells::lost, stream}); }
  };
  [[nodiscard]] int draw(int below) {
    return static_cast<int>(random_() % static_cast<unsigned>(below));
  }
  [[nodiscard]] Route& route(int worker, std::size_t part) {
    return *routes_[part * workers_.size() + static_cast<std::size_t>(worker)];
  }

  void begin(int n) {
    Worker& worker = workers_[static_cast<std::size_t>(n)];
    ++worker.stream;
    worker.state = Worker::asks;
    route(n, static_cast<std::size_t>(worker.first))
        .to_part.push_back({Tells::begin, worker.stream});
  }
  /// Or has been told that its stream is lost.
  void fail(int n) {
    Worker& worker = workers_[static_cast<std::size_t>(n)];
    for (std::size_t p = 0; p < parts_.size(); ++p)
      if (worker.state == Worker::running || p == static_cast<std::size_t>(worker.first))
        route(n, p).to_part.push_back({Tells::fail, worker.stream});
    worker.state = Worker::idle;
  }
  /// One message arrives.
  void move() {
    int const n = draw(static_cast<int>(workers_.size()));
    auto const p = static_cast<std::size_t>(draw(static_cast<int>(parts_.size())));
    Route& at = route(n, p);
    auto& queue = draw(2) == 0 ? at.to_part : at.to_worker;
    if (queue.empty()) return;
    Tells const now = queue.front();
    queue.pop_front();
    Worker& worker = workers_[static_cast<std::size_t>(n)];
    if (now.what == Tells::begin) {
      at.stream = now.stream;
      std::uint32_t const failures = parts_[p]->begin(n, now.failures);
      if (now.failures == any_failures)
        at.to_worker.push_back({Tells::answer, now.stream, failures});
    } else if (now.what == Tells::fail) {
      parts_[p]->end(n, true);
    } else if (now.stream != worker.stream || worker.state == Worker::idle) {
      return;
    } else if (now.what == Tells::answer) {
      worker.state = Worker::running;
      for (std::size_t each = 0; each < parts_.size(); ++each)
        if (each != p) route(n, each).to_part.push_back({Tells::begin, now.stream, now.failures});
    } else {
      ++worker.lost;
      fail(n);
    }
  }

  std::mt19937_64 random_;
  std::vector<Worker> workers_;
  std::vector<std::unique_ptr<Route>> routes_;                   // [parts][workers]
  std::vector<std::unique_ptr<server::ServerInProcess>> parts_;  // tell the routes
};

}  // namespace

TEST_CASE(
    "collective/server parts: a failure ends one stream of each worker, in whatever order the "
    "parts hear "
    "of it",
    "[collective]") {
  std::uint64_t const seeds = full() ? 20000 : sanitized ? 40 : 300;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    CAPTURE(seed);
    int const workers = 2 + static_cast<int>(seed % 3);
    int const parts = 1 + static_cast<int>(seed / 3 % 3);
    int const failures = 1 + static_cast<int>(seed / 9 % 3);
    Town town(seed, workers, parts);
    town.run(failures);
    // Two workers that fail at once may count as one failure.
    REQUIRE(town.failures(0) >= 1);
    REQUIRE(town.failures(0) <= static_cast<std::uint32_t>(failures));
    for (std::size_t p = 1; p < static_cast<std::size_t>(parts); ++p)
      REQUIRE(town.failures(p) == town.failures(0));
    for (auto const& worker : town.workers()) {
      REQUIRE(worker.state == Town::Worker::running);
      REQUIRE(worker.lost <= failures);
    }
  }
}

TEST_CASE(
    "collective/server parts: one that has not heard of failures counts them, but not any number",
    "[collective]") {
  for (auto const on_failure :
       {sg::collective::OnFailure::fail_fast, sg::collective::OnFailure::go_on}) {
    sg::FixedArray<sg::detail::LayerParameters> layers(1);
    layers[0].adopt({}, 0, 0);
    sg::List<std::uint64_t> digests;
    digests.push_back(server::values_digest(layers[0].values()));
    server::ServerInProcess part({.workers = 2, .on_failure = on_failure});
    Silent first, second;
    int const one = part.join(0, {layers.data(), 1}, digests, {}, first);
    int const two = part.join(1, {layers.data(), 1}, digests, {}, second);
    CHECK(part.begin(one, 3) == 3);
    CHECK(part.layers().failures(0) == 3);
    CHECK(part.layers().failures(1) == (on_failure == sg::collective::OnFailure::go_on ? 0 : 3));
    CHECK_THROWS_WITH(
        part.begin(two, 1u << 31),
        Catch::Matchers::Contains("worker 1 says that 2147483648 of its streams have failed"));
    CHECK(part.layers().failures(0) == 3);
  }
}

}  // namespace server_in_process_test
