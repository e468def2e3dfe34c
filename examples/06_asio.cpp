// SPDX-License-Identifier: Apache-2.0
// Training inside a Boost.Asio program: its executor awaits steps, and Ctrl-C ends training.
//
//     io_context, one thread:   await step . . . . await step . . . . SIGINT -> stop token
//                                    |             ^                               |
//     the pipeline's threads:        F F B F B B --+                  no further action starts
//
// Build:  g++ -std=c++20 -O2 -I include examples/06_asio.cpp -pthread -o asio   (needs Boost 1.81)
// Prints: the ticks of a timer during training, and the step at which the signal ended it
// uses: stagger::host
// expect: ticks while training: [1-9]
// expect: the step was cancelled; parameters are those after step [1-9][0-9]*
#include <chrono>
#include <csignal>
#include <cstdio>
#include <tuple>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <stagger/host/asio.hpp>
#include <stagger/stagger.hpp>
namespace sg = stagger;
namespace asio = boost::asio;

struct Scale {  // y = a x
  using Input = sg::Tensor<>;
  using Output = sg::Tensor<>;
  sg::Parameter<> a{"a", {1.5F}};

  void forward(sg::Context& c, Input const& x, Output& y, sg::NothingSaved&) {
    y.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = c[a][0] * x[i];
  }
  void backward(sg::Context& c, Input const& x, Output const& dy, Input& dx, sg::NothingSaved&) {
    dx.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      dx[i] = dy[i] * c[a][0];
      c.gradient(a)[0] += dy[i] * x[i];
    }
  }
  auto parameters() { return std::tie(a); }
};

using Batch = sg::Batch<sg::Tensor<>, sg::Tensor<>>;
using Stop = sg::host::StopOn<asio::io_context::executor_type>;

// Trains until it is stopped. Meanwhile the io_context's thread is free for other work.
asio::awaitable<void> fit(auto& train, Batch const& batch, Stop& stop) {
  try {
    for (;;) co_await sg::host::async_run(train.step(batch, stop.token()), asio::use_awaitable);
  } catch (sg::Error const& error) {
    std::printf("%s\n", error.what());
  }
}

// The rest of the program: a timer, which sends the signal of Ctrl-C at its fifth tick.
asio::awaitable<void> tick() {
  asio::steady_timer timer(co_await asio::this_coro::executor);
  for (int n = 1; n <= 5; ++n) {
    timer.expires_after(std::chrono::milliseconds(20));
    co_await timer.async_wait(asio::use_awaitable);
    std::printf("ticks while training: %d\n", n);
  }
  std::raise(SIGINT);
}

int main() {
  auto train = sg::Pipeline{Scale{}, Scale{}}.with(
      sg::loss::MeanSquaredError<>{}, sg::optimizer::Sgd{.rate = 0.001}, sg::host::Threads{2});
  Batch batch;
  for (int m = 1; m <= 4; ++m) {  // the model is to learn y = 6 x
    sg::Tensor<> x{1}, y{1};
    x.fill(static_cast<float>(m) / 2);
    y.fill(static_cast<float>(m) * 3);
    batch.inputs.push_back(x);
    batch.targets.push_back(y);
  }

  asio::io_context context;
  Stop stop(context.get_executor(), {SIGINT, SIGTERM});  // stop.after(time) would also end it
  asio::co_spawn(context, fit(train, batch, stop), asio::detached);
  asio::co_spawn(context, tick(), asio::detached);
  context.run();
}
