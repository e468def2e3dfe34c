// SPDX-License-Identifier: Apache-2.0
// A parameter server and its workers as programs of their own, over TCP.
//
//     parameter_server serve 7070 2 [FOLDER]        a server for two workers; port 0: any, it is printed
//     parameter_server work localhost 7070 0 200    worker 0, 200 steps
//     parameter_server work localhost 7070 1 200
//     parameter_server together 2 200               the same in one process, for comparison
//
// Each worker learns from examples of its own, in step with the others; where workers run changes no
// bit, nor does a server with a FOLDER that is killed and started again there. With SERVE_ON=10.0.0.1
// it listens elsewhere than on loopback, and needs a token of 16 to 64 bytes in PARAMETER_SERVER_TOKEN,
// for workers too. With PARAMETER_SERVER_RUN=NAME it refuses workers and a FOLDER of other runs.
#include <array>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/core/digest.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/host/asio_parameter_server.hpp>
#include <stagger/stagger.hpp>
namespace sg = stagger;
constexpr std::size_t width = 16;
using Row = std::array<float, width>;

/// y = tanh(w x + b).
struct Dense {
  using Input = Row;
  using Output = Row;
  using Saved = std::array<Row, 2>;  // x, y
  sg::Parameter<> w, b{"b", std::vector<float>(width)};
  explicit Dense(int number) : w("w", first(number)) {}
  static std::vector<float> first(int number) {
    std::vector<float> all(width * width);
    for (int i = 100 * number; auto& value : all)
      value = 0.3F * std::sin(7.0F * static_cast<float>(i++));
    return all;
  }
  void forward(sg::Context& c, Row const& x, Row& y, Saved& saved) {
    for (std::size_t i = 0; i < width; ++i) {
      float sum = c[b][i];
      for (std::size_t j = 0; j < width; ++j) sum += c[w][i * width + j] * x[j];
      y[i] = std::tanh(sum);
    }
    saved = {x, y};
  }
  void backward(sg::Context& c, Row const&, Row const& dy, Row& dx, Saved& saved) {
    dx = {};
    for (std::size_t i = 0; i < width; ++i) {
      float const g = dy[i] * (1 - saved[1][i] * saved[1][i]);
      c.gradient(b)[i] += g;
      for (std::size_t j = 0; j < width; ++j) {
        c.gradient(w)[i * width + j] += g * saved[0][j];
        dx[j] += g * c[w][i * width + j];
      }
    }
  }
  auto parameters() { return std::tie(w, b); }
};

struct Square {
  using policy_tag = sg::LossTag;
  using Target = Row;
  double terms(Row const&) const { return width; }
  double value(sg::Context&, Row const& y, Row const& t) const {
    return std::transform_reduce(y.begin(), y.end(), t.begin(), 0.0, std::plus<>(),
                                 [](float a, float b) { return (a - b) * (a - b); });
  }
  double value_and_gradient(sg::Context& c, Row const& y, Row const& t, double scale,
                            Row& dy) const {
    for (std::size_t i = 0; i < width; ++i) dy[i] = static_cast<float>(2 * scale) * (y[i] - t[i]);
    return value(c, y, t);
  }
};

sg::optimizer::AdamW const optimizer{.rate = 1e-2};

/// What a worker learns from in a step: to shift a row by one place.
sg::Batch<Row, Row> examples(int worker, int step) {
  sg::Batch<Row, Row> batch;
  for (int k = 0; k < 8; ++k) {
    Row x, y;
    auto const pitch = static_cast<float>(1 + k + 8 * (worker + step % 4));
    for (std::size_t i = 0; i < width; ++i)
      y[(i + 1) % width] = x[i] = 0.8F * std::sin(pitch * static_cast<float>(i + 1));
    batch.inputs.push_back(x);
    batch.targets.push_back(y);
  }
  return batch;
}

/// @param server  in this process or in another
auto make_worker(auto const& server, int number) {
  return sg::Pipeline{sg::Sequential{std::vector<Dense>{Dense(0), Dense(1), Dense(2)}}}.with(
      sg::partition::Cuts{{1 + number % 2}}, sg::staleness::Synchronous{}, server.worker(number),
      optimizer, Square{}, sg::host::Threads{2});
}

void print(int worker, double loss, auto& train) {
  std::uint64_t sum = sg::detail::empty_digest;
  for (auto const& p : train.parameters())
    sum = sg::detail::digest(reinterpret_cast<char const*>(p.value.data()), p.value.size(), sum);
  std::printf("worker %d: loss %.5f, digest of the parameters %016llx\n", worker, loss,
              static_cast<unsigned long long>(sum));
}

std::string const run_name =
    std::getenv("PARAMETER_SERVER_RUN") == nullptr ? "" : std::getenv("PARAMETER_SERVER_RUN");

sg::host::Token token() {
  constexpr char const* name = "PARAMETER_SERVER_TOKEN";
  return std::getenv(name) == nullptr ? sg::host::Token() : sg::host::Token::from_environment(name);
}

void serve(std::uint16_t port, int workers, std::string const& folder) {
  sg::collective::ParameterServer const server(
      {.workers = workers, .durable = folder, .run = run_name});
  sg::host::ListenOptions options{.port = port, .token = token()};
  if (char const* const address = std::getenv("SERVE_ON")) options.address = address;
  sg::host::AsioParameterServer const listening(server, options, optimizer);
  std::printf("listening on port %d\n", listening.port()), std::fflush(stdout);
  boost::asio::io_context context;  // until a signal comes
  boost::asio::signal_set signals(context, SIGINT, SIGTERM);
  signals.async_wait([](auto, int) {});
  context.run();
}

/// Where another worker fails, the step is lost, and this one goes on from the server's weights.
void work(std::string const& host, std::uint16_t port, int number, int steps) {
  sg::host::RemoteParameterServer const server(
      {.host = host, .port = port, .token = token(), .deadline_s = 10, .run = run_name});
  auto train = make_worker(server, number);
  double loss = 0;
  int failures = 0;  // in a row
  for (int step = 0; step < steps; ++step) {
    auto const batch = examples(number, step);
    try {
      loss = run(train.step(batch)).loss;
      failures = 0;
      if (step == 0) std::printf("worker %d: trains\n", number), std::fflush(stdout);
    } catch (sg::Error const& error) {
      if (error.code() != sg::Errc::peer_failed && error.code() != sg::Errc::io) throw;
      if (++failures == 3) throw;
      std::fprintf(stderr, "worker %d, step %d: %s\n", number, step, error.what());
    }
  }
  print(number, loss, train);
}

void together(int workers, int steps) {
  sg::collective::ParameterServer const server({.workers = workers});
  std::vector<decltype(make_worker(server, 0))> trains;
  for (int n = 0; n < workers; ++n) trains.push_back(make_worker(server, n));
  std::vector<sg::Metrics> metrics;
  for (int step = 0; step < steps; ++step) {
    std::vector<sg::Batch<Row, Row>> batches;
    std::vector<sg::Step> all;
    for (int n = 0; n < workers; ++n) batches.push_back(examples(n, step));
    for (std::size_t n = 0; n < trains.size(); ++n) all.push_back(trains[n].step(batches[n]));
    metrics = sg::run_together(std::move(all));
  }
  for (int n = 0; auto& train : trains)
    print(n, metrics[static_cast<std::size_t>(n)].loss, train), ++n;
}

int main(int argc, char** argv) {
  std::vector<std::string> const words(argv + 1, argv + argc);
  auto const number = [&](std::size_t i) {
    char* end = nullptr;
    long const value = std::strtol(words[i].c_str(), &end, 10);
    if (*end == 0 && value >= 0 && value < 65536) return static_cast<int>(value);
    sg::raise(sg::Errc::bad_configuration, "'", words[i], "' is no number from 0 to 65535");
  };
  try {
    if (words.size() >= 3 && words.size() <= 4 && words[0] == "serve")
      serve(static_cast<std::uint16_t>(number(1)), number(2), words.size() == 4 ? words[3] : "");
    else if (words.size() == 5 && words[0] == "work")
      work(words[1], static_cast<std::uint16_t>(number(2)), number(3), number(4));
    else if (words.size() == 3 && words[0] == "together")
      together(number(1), number(2));
    else
      sg::raise(sg::Errc::bad_configuration,
                "say 'serve PORT WORKERS [FOLDER]', 'work HOST PORT NUMBER STEPS' or 'together "
                "WORKERS STEPS'");
  } catch (std::exception const& error) {
    std::fprintf(stderr, "parameter_server: %s\n", error.what());
    return 1;
  }
}
