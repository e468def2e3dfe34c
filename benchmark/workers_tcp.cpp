// SPDX-License-Identifier: Apache-2.0
// Workers of a parameter server over TCP on loopback, all in one process, each with threads of its own.
//
//   tcp         four workers push and pull a model of 64 MiB in 16 layers, on arrival; compared with raw
//               streams of Asio that carry the same bytes there and back, in turns with it
//   tcp_small   16 workers on two threads push layers of 4 KiB, each of which is acknowledged

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/host/asio_parameter_server.hpp>

#include "support/rows.hpp"
#include "support/server_workers.hpp"

namespace {

namespace sg = stagger;
namespace asio = boost::asio;
using asio::ip::tcp;
using sg::detail::LayerParameters;

constexpr std::size_t model_bytes = std::size_t{64} << 20U;
constexpr std::size_t layer_count = 16;
constexpr int workers = 4;
constexpr int rounds = 8;

/// Seconds of each round, which all workers begin together. @param round  (worker, round)
template <class Round> std::vector<double> timed(Round round) {
  std::vector<double> took(rounds);
  std::barrier together(workers);
  std::vector<std::thread> threads;
  for (int n = 0; n < workers; ++n)
    threads.emplace_back([&, n] {
      for (int r = 0; r < rounds; ++r) {
        together.arrive_and_wait();
        double const start_s = bench::now_s();
        round(n, r);
        together.arrive_and_wait();
        if (n == 0) took[static_cast<std::size_t>(r)] = bench::now_s() - start_s;
      }
    });
  for (std::thread& thread : threads) thread.join();
  return took;
}

/// Both directions of a stream at once, as a worker's answers come while it pushes.
double raw() {
  asio::io_context context;
  tcp::acceptor acceptor(context, {asio::ip::address_v4::loopback(), 0});
  std::vector<std::vector<char>> there(workers, std::vector<char>(model_bytes));
  auto sent = there, got = there;
  std::vector<std::unique_ptr<asio::io_context>> contexts;
  std::vector<tcp::socket> ends, servers;
  for (int n = 0; n < workers; ++n) {
    contexts.push_back(std::make_unique<asio::io_context>(1));
    ends.emplace_back(*contexts.back());
    ends.back().connect(acceptor.local_endpoint());
    servers.push_back(acceptor.accept());
  }
  std::size_t const piece = model_bytes / layer_count;
  // Of each piece that has come, one goes back.
  std::vector<std::size_t> at(workers), left(workers, rounds * layer_count);
  struct Echo {
    std::vector<tcp::socket>& servers;
    std::vector<std::vector<char>>& there;
    std::vector<std::size_t>&at, &left;
    std::size_t piece;
    void go(std::size_t n) {
      if (left[n]-- == 0) return;
      auto const part = asio::buffer(there[n].data() + at[n], piece);
      at[n] = (at[n] + piece) % model_bytes;
      asio::async_read(servers[n], part, [this, n, part](auto const&, std::size_t) {
        asio::async_write(servers[n], part, [this, n](auto const&, std::size_t) { go(n); });
      });
    }
  } echo{servers, there, at, left, piece};
  for (std::size_t n = 0; n < workers; ++n) echo.go(n);
  std::thread server([&] { context.run(); });
  auto const took = timed([&](int worker, int) {
    auto const n = static_cast<std::size_t>(worker);
    asio::async_write(ends[n], asio::buffer(sent[n]), [](auto const&, std::size_t) {});
    asio::async_read(ends[n], asio::buffer(got[n]), [](auto const&, std::size_t) {});
    contexts[n]->restart();
    contexts[n]->run();
  });
  server.join();
  return bench::median(took);
}

double exchange() {
  sg::collective::ParameterServer const server({.workers = workers});
  sg::host::AsioParameterServer const listening(server);
  sg::host::RemoteParameterServer const remote({.port = listening.port()});
  std::size_t const floats = model_bytes / layer_count / sizeof(float);
  std::vector<std::vector<LayerParameters>> models;
  std::vector<Waiting> waiting(workers);
  std::vector<std::shared_ptr<sg::detail::ParameterLink>> links;
  for (int n = 0; n < workers; ++n) {
    auto& model = models.emplace_back(layers(layer_count, floats));
    links.push_back(remote.worker(n).link());
    links.back()->join({model.data(), model.size()}, rules(sg::staleness::Adds::on_arrival),
                       waiting[static_cast<std::size_t>(n)]);
    links.back()->begin();
    for (std::size_t l = 0; l < layer_count; ++l) links.back()->read(l, model[l].values().data());
  }
  auto const took = timed([&](int worker, int round) {
    auto const n = static_cast<std::size_t>(worker);
    for (std::size_t l = 0; l < layer_count; ++l) {
      models[n][l].exchange(LayerParameters::gradients, [&](sg::detail::ParameterBlock& values) {
        links[n]->hand_over(l, values);
      });
      links[n]->ask(l, 0);
    }
    waiting[n].wait_for(static_cast<std::uint32_t>(round + 1) * layer_count);
    for (std::size_t l = 0; l < layer_count; ++l)
      models[n][l].exchange(
          0, [&](sg::detail::ParameterBlock& to) { return links[n]->take_over(l, 0, to); });
  });
  for (auto const& link : links) link->end(nullptr);
  for (auto const& link : links) link->leave();
  return bench::median(took);
}

void large(benchmark::State& state) {
  for ([[maybe_unused]] auto _ : state) {
    double const plain_s = raw();
    double const own_s = exchange();
    state.SetIterationTime(own_s);
    state.counters["of_raw"] = plain_s / own_s;
  }
}

void small(benchmark::State& state) {
  constexpr int many = 16;
  constexpr int threads = 2;
  constexpr int pushes = 4000;  // of each worker
  sg::collective::ParameterServer const server({.workers = many});
  sg::host::AsioParameterServer const listening(server);
  sg::host::RemoteParameterServer const remote({.port = listening.port()});
  auto model = layers(1, 1024);
  std::vector<Waiting> waiting(many);
  std::vector<std::shared_ptr<sg::detail::ParameterLink>> links;
  for (int n = 0; n < many; ++n) {
    links.push_back(remote.worker(n).link());
    links.back()->join({model.data(), 1}, rules(sg::staleness::Adds::on_arrival),
                       waiting[static_cast<std::size_t>(n)]);
    links.back()->begin();
    links.back()->read(0, model[0].values().data());
  }
  for ([[maybe_unused]] auto _ : state) {
    std::vector<std::vector<double>> took(threads);
    auto const work = [&](std::size_t k) {
      std::vector<double> last(many, bench::now_s());
      for (int i = 0; i < pushes; ++i)
        for (std::size_t n = k; n < many; n += threads) {
          links[n]->push(0, model[0].values().data(), false);  // behind the last acknowledgement
          double const now_s = bench::now_s();
          if (i != 0) took[k].push_back(now_s - last[n]);
          last[n] = now_s;
        }
    };
    double const start_s = bench::now_s();
    std::thread other([&] { work(1); });
    work(0);
    other.join();
    double const all_s = bench::now_s() - start_s;
    took[0].insert(took[0].end(), took[1].begin(), took[1].end());
    std::sort(took[0].begin(), took[0].end());
    state.SetIterationTime(all_s);
    state.counters["a_second"] = many * pushes / all_s;
    state.counters["p99_us"] = 1e6 * took[0][took[0].size() * 99 / 100];
  }
  for (auto const& link : links) link->end(nullptr);
  for (auto const& link : links) link->leave();
}

}  // namespace

int main(int argc, char** argv) {
  bench::add("workers/tcp", 3, large);
  bench::add("workers/tcp_small", 3, small);
  auto const grade = [](bool met) { return met ? bench::Grade::passed : bench::Grade::failed; };
  return bench::run(
      argc, argv,
      {{"4 workers push and pull 64 MiB over TCP on loopback, against raw streams of Asio",
        "workers/tcp",
        [=](bench::Results const& results) {
          double const share = results.counter("workers/tcp", "of_raw");
          return bench::Line{
              bench::text("%.0f ms (%.0f %%)", 1e3 * results.time_s("workers/tcp"), 100 * share),
              "at least 70 % of the raw streams", grade(share >= 0.7)};
        }},
       {"the same, acknowledged pushes of 4 KiB by 16 workers", "workers/tcp_small",
        [=](bench::Results const& results) {
          double const a_second = results.counter("workers/tcp_small", "a_second");
          return bench::Line{bench::text("%.0f a second, 99 %% of them in %.0f us", a_second,
                                         results.counter("workers/tcp_small", "p99_us")),
                             "at least 40000 a second", grade(a_second >= 4e4)};
        }}});
}
