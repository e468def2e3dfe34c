// SPDX-License-Identifier: Apache-2.0
#include <stagger/host/asio_parameter_server.hpp>

#include "catch.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <stagger/staleness/local_sgd.hpp>

#include "../engine/split_model.hpp"
#include "../temporary_folder.hpp"
#include "../train/overlapped_oracle.hpp"
#include "../train/workers_oracle.hpp"

namespace restart_test {

using namespace workers_oracle;

namespace {

/// A server on a port, which goes and comes back there.
template <class Optimizer, class Model = sg::staleness::Synchronous> class OnPort {
 public:
  OnPort(sg::collective::ServerOptions options, Optimizer const& optimizer, double deadline_s = 20,
         Model const& model = {})
      : options_(std::move(options)),
        optimizer_(optimizer),
        model_(model),
        deadline_s_(deadline_s) {
    using boost::asio::ip::tcp;
    reserved_.open(tcp::v4());
    reserved_.set_option(tcp::acceptor::reuse_address(true));
    reserved_.bind({boost::asio::ip::address_v4::loopback(), 0});
    start();
  }
  OnPort(OnPort const&) = delete;
  OnPort& operator=(OnPort const&) = delete;
  ~OnPort() { stop_restarting(); }

  void stop() {
    listening_ = nullptr;
    server_ = nullptr;
  }
  void start() {
    server_ = std::make_unique<sg::collective::ParameterServer>(options_);
    listening_ = std::make_unique<sg::host::AsioParameterServer>(
        *server_, sg::host::ListenOptions{.port = port(), .deadline_s = deadline_s_, .threads = 2},
        optimizer_, model_);
  }
  /// Whenever worker 0 has pushed something, so many times.
  void restart_between_pushes(int times) {
    thread_ = std::thread([this, times] {
      std::uint32_t seen = 0;
      for (int i = 0; i < times; ++i) {
        std::uint32_t now = seen;
        while (now == seen && !over_.load()) {
          std::this_thread::yield();
          if (!server_->in_process()->wants_values()) now = server_->in_process()->pushes(0, 0);
        }
        if (over_.load()) return;
        seen = now;
        stop();
        start();
        ++restarts_;
      }
    });
  }
  /// @return how often it has come back
  int stop_restarting() {
    over_.store(true);
    if (thread_.joinable()) thread_.join();
    return restarts_;
  }
  [[nodiscard]] auto worker(int number) const {
    return sg::host::RemoteParameterServer({.port = port(), .deadline_s = 20}).worker(number);
  }
  [[nodiscard]] std::uint16_t port() const { return reserved_.local_endpoint().port(); }
  [[nodiscard]] auto local(int number) const { return server_->worker(number); }

 private:
  sg::collective::ServerOptions options_;
  Optimizer optimizer_;
  Model model_;
  double deadline_s_;
  boost::asio::io_context context_;
  boost::asio::ip::tcp::acceptor reserved_{context_};  // does not listen, but keeps the port from
                                                       // others while the server is away
  std::unique_ptr<sg::collective::ParameterServer> server_;
  std::unique_ptr<sg::host::AsioParameterServer> listening_;
  std::atomic<bool> over_{false};
  int restarts_ = 0;
  std::thread thread_;
};

}  // namespace

TEST_CASE("asio/AsioParameterServer: streams go on with a durable server that is started again",
          "[asio]") {
  for (int const distance : {0, 1}) {
    CAPTURE(distance);
    for (int restarts = 0; restarts == 0;) {  // none if the system does not run that thread in time
      TemporaryFolder const folder;
      OnPort<sg::optimizer::Sgd> server({.workers = 2, .shards = 2, .durable = folder.path()}, {});
      server.restart_between_pushes(5);
      compare(Waves{2, 2, distance}, server, {{2}, {1}}, 2, 15, adam);
      restarts = server.stop_restarting();
    }
  }
}

TEST_CASE("asio/AsioParameterServer: steps go on with a durable server that is started again",
          "[asio]") {
  for (int restarts = 0; restarts == 0;) {
    TemporaryFolder const folder;
    OnPort server({.workers = 2, .durable = folder.path()}, adam);
    server.restart_between_pushes(3);
    compare_steps(2, server, adam);
    restarts = server.stop_restarting();
  }
}

TEST_CASE("asio/AsioParameterServer: a durable server that is started again has what it had",
          "[asio]") {
  TemporaryFolder const folder;
  OnPort server({.workers = 1, .durable = folder.path()}, adam);
  OracleServer<sg::optimizer::AdamW> oracle{adam};
  for (int life = 0; life < 3; ++life) {  // of the worker, too
    auto train = stepping(sg::staleness::Synchronous{}, server, 0, adam);
    for (int step = 0; step < 3; ++step) {
      auto const batch = data(3, 3 * life + step);
      static_cast<void>(run(train.step(batch)));
      oracle.step(gradients(oracle.w, batch));
      REQUIRE(weights(train) == oracle.w);
    }
    server.stop();
    server.start();
  }
}

TEST_CASE(
    "asio/AsioParameterServer: groups that share layers have the bits of groups in its process",
    "[asio]") {
  using split_model::Case;
  auto const optimizer = split_model::optimizer();
  auto const check = [&](auto const& model, Case const& of_a, Case const& of_b) {
    TemporaryFolder const folder;
    OnPort server({.workers = 2, .durable = folder.path()}, optimizer);
    sg::collective::ParameterServer const near({.workers = 2});
    auto const make = [&](Case const& of, auto const& worker) {
      return split_model::pipeline<double>(sg::host::Threads{2}, of, model, worker);
    };
    auto a = make(of_a, server.worker(0));
    auto b = make(of_b, server.worker(1));
    auto c = make(of_a, near.worker(0));
    auto d = make(of_b, near.worker(1));
    for (int step = 0; step < 5; ++step) {
      auto const batch_a = split_model::batch<double>(2 * step, of_a.microbatches, 17);
      auto const batch_b = split_model::batch<double>(2 * step + 1, of_b.microbatches, 17);
      auto const there = sg::run_together(a.step(batch_a), b.step(batch_b));
      auto const here = sg::run_together(c.step(batch_a), d.step(batch_b));
      for (std::size_t n = 0; n < 2; ++n) REQUIRE(there[n].loss == here[n].loss);
      REQUIRE(split_model::bits(a) == split_model::bits(c));
      REQUIRE(split_model::bits(b) == split_model::bits(d));
      if (step % 2 != 0) continue;
      server.stop();
      server.start();
    }
  };
  Case const group{.members = 2, .microbatches = 2};
  Case const groups{.members = 2, .groups = 2, .microbatches = 3, .cuts = {3}};
  check(sg::staleness::Synchronous{}, group, groups);
  check(sg::staleness::LocalSgd{.period = 1}, group, groups);
  check(sg::staleness::LocalSgd{.period = 3, .average_state = false}, groups, group);
  Case each_pass = group;
  each_pass.update = sg::partition::Update::each_pass;
  check(sg::staleness::LocalSgd{.period = 2}, each_pass, each_pass);
}

TEST_CASE("asio/AsioParameterServer: who does not come back to a durable server has failed",
          "[asio]") {
  TemporaryFolder const folder;
  OnPort server({.workers = 2, .durable = folder.path()}, adam, 0.5);
  auto a = stepping(sg::staleness::Synchronous{}, server, 0, adam);
  auto const batch = data(2);
  {
    auto b = std::make_unique<decltype(stepping(sg::staleness::Synchronous{}, server, 1, adam))>(
        stepping(sg::staleness::Synchronous{}, server, 1, adam));
    sg::run_together(a.step(batch), b->step(batch));
    server.stop();
    b = nullptr;  // which the server does not hear of
  }
  server.start();
  REQUIRE_THROWS_WITH(run(a.step(batch)), Catch::Matchers::Contains("worker 1 has failed"));
  auto b = stepping(sg::staleness::Synchronous{}, server, 1, adam);
  sg::run_together(a.step(batch), b.step(batch));
  REQUIRE(weights(a) == weights(b));
}

TEST_CASE("asio/AsioParameterServer: a worker does not go on with the server of another run",
          "[asio]") {
  OnPort server({.workers = 1}, adam);
  auto train = stepping(sg::staleness::Synchronous{}, server, 0, adam);
  auto const batch = data(2);
  static_cast<void>(run(train.step(batch)));
  server.stop();
  REQUIRE_THROWS_WITH(run(train.step(batch)), Catch::Matchers::Contains("has ended"));
  server.start();
  REQUIRE_THROWS_WITH(run(train.step(batch)), Catch::Matchers::Contains("has been started anew"));
}

TEST_CASE("asio/RemoteParameterServer: a worker waits for a server that does not run yet",
          "[asio]") {
  OnPort server({.workers = 1}, adam);
  server.stop();
  std::thread late([&] {
    {  // another program on the port, which closes the connection
      boost::asio::io_context context;
      boost::asio::ip::tcp::acceptor other(
          context, {boost::asio::ip::address_v4::loopback(), server.port()});
      other.accept().close();
    }
    server.start();
  });
  auto train = stepping(sg::staleness::Synchronous{}, server, 0, adam);
  late.join();
  OracleServer<sg::optimizer::AdamW> oracle{adam};
  auto const batch = data(3);
  static_cast<void>(run(train.step(batch)));
  oracle.step(gradients(oracle.w, batch));
  REQUIRE(weights(train) == oracle.w);
}

TEST_CASE("asio/AsioParameterServer: late layers begin anew from a durable server's weights",
          "[asio]") {
  using namespace overlapped_oracle;
  TemporaryFolder const folder;
  OnPort server({.workers = 2, .durable = folder.path()}, adam, 20, local_split);
  auto a = stepping(local_split, server, 0, adam);
  auto b = stepping(local_split, server, 1, adam, {1});
  Oracle<sg::optimizer::AdamW> oracle{adam, local_split_rules(), 2};
  for (int life = 0; life < 3; ++life) {
    for (int step = 0; step < 3; ++step) {
      std::vector<Batch> const batches{data(3, 10.0 * oracle.step),
                                       data(3, 10.0 * oracle.step + 1)};
      sg::run_together(a.step(batches[0]), b.step(batches[1]));
      oracle.train(batches);
    }
    REQUIRE(weights(a) == oracle.p);  // nothing is late any more
    REQUIRE(weights(b) == oracle.p);
    server.stop();
    server.start();
    for (auto* const train : {&a, &b})  // the stream does not go on
      REQUIRE_THROWS_AS(run(train->step(data(3))), sg::Error);
    oracle.theta.assign(2, oracle.p);
    oracle.late.assign(layers, 0);
  }
}

}  // namespace restart_test
