// SPDX-License-Identifier: Apache-2.0
#include <stagger/collective/remote_link.hpp>
#include <stagger/collective/server_connection.hpp>

#include "catch.hpp"

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/engine/setup.hpp>
#include <stagger/model/muon.hpp>
#include <stagger/staleness/local_sgd.hpp>
#include <stagger/staleness/round_robin_synchronous.hpp>
#include <stagger/staleness/synchronous.hpp>

#include "overlapped_oracle.hpp"
#include "workers_oracle.hpp"

namespace remote_workers_test {

namespace remote = stagger::collective::detail;
using namespace workers_oracle;

namespace {

/// Carries messages between two ends in memory, by a thread of its own. Each is copied, so that an
/// end which reuses a payload too early is noticed.
class Courier final : public remote::Transport {
 public:
  Courier(remote::MessageEnd& worker, remote::ServerConnection& server)
      : worker_(worker), server_(server) {
    server.carried_by(*this);
    thread_ = std::thread([this] { run(); });
  }
  ~Courier() override { close(); }
  void wake() noexcept override {
    {
      std::lock_guard const lock(mutex_);
      woken_ = true;
    }
    wake_.notify_one();
  }
  void close() noexcept override {
    {
      std::lock_guard const lock(mutex_);
      woken_ = closed_ = true;
    }
    wake_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

 private:
  void run() {
    for (bool last = false; !last;) {
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return woken_; });
        woken_ = false;
        last = closed_;
      }
      if (over_) continue;
      try {
        while (carry(worker_, server_)) {
        }
        while (!last && carry(server_, worker_)) {
        }
      } catch (stagger::Error const& error) {
        refuse(error.what());
      }
    }
    if (!over_) server_.gone(nullptr);
  }
  bool carry(remote::MessageEnd& from, remote::MessageEnd& to) {
    remote::Message message;
    std::span<std::byte const> payload;
    if (!from.next(message, payload)) return false;
    std::vector<std::byte> const copy(payload.begin(), payload.end());
    auto const buffer = to.payload_buffer(message);
    if (buffer.size() != copy.size())
      stagger::raise(stagger::Errc::bad_data, "a message of ", copy.size(),
                     " bytes has memory for ", buffer.size());
    std::copy(copy.begin(), copy.end(), buffer.begin());
    to.received(message);
    return true;
  }
  void refuse(std::string const& sentence) {
    over_ = true;
    server_.gone(nullptr);
    remote::Message const message{.kind = remote::MessageKind::refused, .bytes = sentence.size()};
    std::memcpy(worker_.payload_buffer(message).data(), sentence.data(), sentence.size());
    worker_.received(message);
  }

  remote::MessageEnd& worker_;
  remote::ServerConnection& server_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool woken_ = true;
  bool closed_ = false;
  bool over_ = false;  // of the thread
  std::thread thread_;
};

/// A server, and workers that reach it by messages.
template <class Optimizer> class Remote {
 public:
  template <class Model = sg::staleness::Synchronous>
  Remote(int workers, Optimizer const& optimizer, Model const& model = {})
      : rules_(remote::remote_rules(optimizer, model, &sg::detail::optimizer_call<false, Optimizer>,
                                    sg::detail::late_calls_of<Model>)),
        server_({.workers = workers, .shards = 2}) {
    rules_.model_bytes = 1U << 20U;
  }
  Remote(Remote const&) = delete;
  [[nodiscard]] sg::collective::ServerWorker worker(int number) const {
    return sg::collective::ServerWorker(
        std::make_shared<remote::RemoteLink>(std::make_unique<Connector>(*this), number));
  }
  [[nodiscard]] sg::collective::ServerWorker local(int number) const {
    return server_.worker(number);
  }

 private:
  struct Both final : remote::Transport {
    remote::ServerConnection connection;
    Courier courier;
    Both(Remote const& to, remote::MessageEnd& end)
        : connection(to.server_.in_process(), to.rules_), courier(end, connection) {}
    void wake() noexcept override { courier.wake(); }
    void close() noexcept override { courier.close(); }
  };
  struct Connector final : remote::Connector {
    explicit Connector(Remote const& server) : to(server) {}
    Remote const& to;
    std::unique_ptr<remote::Transport> connect(remote::MessageEnd& end) override {
      return std::make_unique<Both>(to, end);
    }
    [[nodiscard]] double deadline_s() const override { return 60; }
    [[nodiscard]] std::string name() const override { return "the same process"; }
  };
  remote::RemoteRules rules_;
  sg::collective::ParameterServer server_;
};

}  // namespace

TEST_CASE("train/RemoteLink: workers have the bits of a sequential loop", "[train]") {
  sweep_waves(Sweep(15), [](Waves const& waves, int rotation, int threads, int minibatches,
                            auto const& optimizer) {
    Remote const server(waves.workers, sg::optimizer::Sgd{});
    compare(waves, server, cuts_from(rotation), threads, minibatches, optimizer);
  });
}

TEST_CASE("train/RemoteLink: a worker in the server's process changes no bit", "[train]") {
  struct Mixed {
    Remote<sg::optimizer::Sgd> const& of;
    [[nodiscard]] auto worker(int number) const {
      return number == 0 ? of.local(0) : of.worker(number);
    }
  };
  Remote const other(3, sg::optimizer::Sgd{});
  compare(Waves{3, 2, 1}, Mixed{other}, {{2}, {1}}, 2, 20, sgd);
}

TEST_CASE("train/RemoteLink: steps that push changes have the bits of a sequential loop",
          "[train]") {
  sweep_stale(Sweep(1), [](Stale const& stale, int rotation, int threads, auto const& optimizer) {
    Remote const server(stale.workers, sg::optimizer::Sgd{});
    compare_changes_on_threads(stale, server, rotation, threads, optimizer);
  });
}

TEST_CASE("train/RemoteLink: steps have the bits of one server loop", "[train]") {
  sweep_steps([](int workers, int rotation, int threads) {
    Remote const server(workers, adam);
    compare_steps(workers, server, adam, rotation, threads);
  });
}

TEST_CASE("train/RemoteLink: an optimizer of matrices has the bits of one server loop", "[train]") {
  sg::optimizer::Muon const muon{.rate = 0.05};  // the server knows of rows what workers tell it
  compare_steps(2, Remote(2, muon), muon);
}

TEST_CASE("train/RemoteLink: means of weights and states have the bits of workers in one process",
          "[train]") {
  for (bool const state : {true, false}) {
    sg::staleness::LocalSgd const model{.period = 2, .average_state = state};
    Remote const server(2, sgd);
    sg::collective::ParameterServer const near({.workers = 2});
    auto const values_and_states = [](auto& train) {
      std::vector<std::byte> all;
      for (auto const& p : train.parameters()) {
        all.insert(all.end(), p.value.begin(), p.value.end());
        for (auto const& each : p.state) all.insert(all.end(), each.begin(), each.end());
      }
      return all;
    };
    auto a = stepping(model, server, 0, adam);
    auto b = stepping(model, server, 1, adam, {1});
    auto c = stepping(model, near, 0, adam);
    auto d = stepping(model, near, 1, adam, {3});
    for (int step = 0; step < 5; ++step) {
      auto const one = data(2, step);
      auto const two = data(2, step + 10.0);
      sg::run_together(a.step(one), b.step(two));
      sg::run_together(c.step(one), d.step(two));
      REQUIRE(values_and_states(a) == values_and_states(c));
      REQUIRE(values_and_states(b) == values_and_states(d));
    }
  }
}

TEST_CASE("train/RemoteLink: late layers have the bits of a sequential loop", "[train]") {
  using namespace overlapped_oracle;
  sweep_steps([](int workers, int rotation, int threads) {
    CAPTURE(rotation, threads);
    Remote const server(workers, adam, local_split);
    int const split = compare_late(
        local_split_rules(), adam, workers, all_of(workers),
        [&](int n) {
          return stepping(local_split, server, n, adam, cuts_of(n, rotation), threads);
        },
        7);
    CHECK(split == 7);
  });
}

TEST_CASE("train/RemoteLink: late layers have the bits of workers in one process", "[train]") {
  Remote const server(2, adam, split_late);
  compare_late_steps(server, server);
}

TEST_CASE("train/RemoteLink: late layers of workers here and elsewhere have the same bits",
          "[train]") {
  struct Here {
    Remote<sg::optimizer::AdamW> const& of;
    [[nodiscard]] auto worker(int number) const { return of.local(number); }
  };
  Remote const first(2, adam, split_late);
  compare_late_steps(Here{first}, first);
  Remote const second(2, adam, split_late);
  compare_late_steps(second, Here{second});
}

TEST_CASE("train/RemoteLink: late layers need a server that chooses them alike", "[train]") {
  Remote const none(2, adam);
  REQUIRE_THROWS_WITH(stepping(split_late, none, 0, adam),
                      Catch::Matchers::Contains("disagree on the staleness model") &&
                          Catch::Matchers::Contains("none that sends layers late"));
  auto other = split_late;
  other.budget.share = 0.5;
  Remote const server(2, adam, split_late);
  REQUIRE_THROWS_WITH(
      stepping(other, server, 0, adam),
      Catch::Matchers::Contains("ShareLate(0.5)") && Catch::Matchers::Contains("ShareLate(0.6)"));
  auto const first = stepping(split_late, server, 0, adam);
  REQUIRE_THROWS_WITH(stepping(sg::staleness::Synchronous{}, server, 1, adam),
                      Catch::Matchers::Contains("the same staleness model"));
}

TEST_CASE(
    "train/RemoteLink: a worker that fails ends the streams of the others, and all begin again",
    "[train]") {
  ends_and_begins_again(Remote(2, sgd));
}

TEST_CASE("train/RemoteLink: the others go on without a worker that takes no further step",
          "[train]") {
  Remote const server(2, adam);
  auto a = stepping(sg::staleness::Synchronous{}, server, 0, adam);
  OracleServer<sg::optimizer::AdamW> oracle{adam};
  auto const half = [&](Batch const& batch) { return scaled(gradients(oracle.w, batch), 0.5F); };
  {
    auto b = stepping(sg::staleness::Synchronous{}, server, 1, adam);
    auto const of_a = data(2, 1);
    auto const of_b = data(2, 2);
    auto sum = half(of_a);
    auto const more = half(of_b);
    for (std::size_t l = 0; l < layers; ++l) add(sum[l], more[l]);
    sg::run_together(a.step(of_a), b.step(of_b));
    oracle.step(sum);
  }
  for (int step = 0; step < 3; ++step) {
    auto const batch = data(2, 3.0 + step);
    auto const alone = half(batch);
    run(a.step(batch));
    oracle.step(alone);
    REQUIRE(weights(a) == oracle.w);
  }
  auto const batch = data(2);
  {
    auto again = stepping(sg::staleness::Synchronous{}, server, 1, adam);  // is waited for again
    auto const other = data(2, 7);
    auto sum = half(batch);
    auto const more = half(other);
    for (std::size_t l = 0; l < layers; ++l) add(sum[l], more[l]);
    sg::run_together(a.step(batch), again.step(other));
    oracle.step(sum);
    REQUIRE(weights(again) == oracle.w);
  }
  auto const alone = half(batch);
  run(a.step(batch));
  oracle.step(alone);
  REQUIRE(weights(a) == oracle.w);
}

TEST_CASE("train/RemoteLink: a worker that waits too long names the other and its pushes",
          "[train]") {
  names_who_is_missing(Remote(2, sgd));
}

TEST_CASE("train/RemoteLink: refuses workers that differ", "[train]") {
  refuses_others(Remote(2, sgd));
  Remote const steps(2, adam);
  REQUIRE_THROWS_WITH(stepping(sg::staleness::Synchronous{}, steps, 0, sgd),
                      Catch::Matchers::Contains("disagree on the optimizer: worker 0 has "
                                                "'stagger::optimizer::Sgd(0.02, 0.9, 0.01)', "
                                                "those who started the server have "
                                                "'stagger::optimizer::AdamW(0.05, "));
  REQUIRE_THROWS_WITH(stepping(sg::staleness::Synchronous{}, Remote(1, sgd), 0, SlowSgd{sgd}),
                      Catch::Matchers::Contains("SlowSgd(0.02, 0.9, 0.01)'"));
}

}  // namespace remote_workers_test
