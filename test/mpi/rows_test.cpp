// SPDX-License-Identifier: Apache-2.0
#include <stagger/mpi/processes.hpp>

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include <stagger/engine/replicas.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/mpi/session.hpp>
#include <stagger/train/pipeline.hpp>

#include "catch.hpp"
#include "world.hpp"

namespace rows_test {

// What neighbours that are replicated differently send each other. Each assertion holds in every
// process.

namespace sg = stagger;

namespace {

/// Rows of one number, which count what is sent of them.
struct Counted {
  std::vector<float> numbers{};
  [[nodiscard]] std::size_t rows() const noexcept { return numbers.size(); }
  void resize_rows(Counted const&, std::size_t n) { numbers.assign(n, 0); }  // keeps nothing
  void copy_rows(std::size_t at, Counted const& from, std::size_t first, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) numbers[at + i] = from.numbers[first + i];
  }
  static inline std::uint64_t sent = 0;
};

struct Twice {
  using Input = Counted;
  using Output = Counted;
  sg::Parameter<> factor{"factor", {2.0F}};
  auto parameters() { return std::tie(factor); }
  void forward(sg::Context& context, Counted const& x, Counted& y, sg::NothingSaved&) {
    y = x;
    for (float& v : y.numbers) v *= context[factor][0];
  }
  void backward(sg::Context& context, Counted const& x, Counted const& dy, Counted& dx,
                sg::NothingSaved&) {
    dx = dy;
    for (std::size_t i = 0; i < x.numbers.size(); ++i) {
      context.gradient(factor)[0] += x.numbers[i] * dy.numbers[i];
      dx.numbers[i] *= context[factor][0];
    }
  }
};

struct Total {
  using policy_tag = sg::LossTag;
  using Target = Counted;
  double terms(Target const& target) const { return static_cast<double>(target.rows()); }
  double value(sg::Context&, Counted const& y, Target const&) const {
    double sum = 0;
    for (float const v : y.numbers) sum += static_cast<double>(v);
    return sum;
  }
  double value_and_gradient(sg::Context& context, Counted const& y, Target const& target,
                            double scale, Counted& dy) const {
    dy.numbers.assign(y.rows(), static_cast<float>(scale));
    return value(context, y, target);
  }
};

}  // namespace

}  // namespace rows_test

template <> struct stagger::Portable<rows_test::Counted> {
  static constexpr bool exists = true;
  static void write(ByteWriter& out, rows_test::Counted const& value) {
    rows_test::Counted::sent += value.rows();
    Portable<std::vector<float>>::write(out, value.numbers);
  }
  static void read(ByteReader& in, rows_test::Counted& value) {
    Portable<std::vector<float>>::read(in, value.numbers);
  }
};

namespace rows_test {

TEST_CASE("mpi/Processes: neighbours with other replicas are sent the rows that they take, no more",
          "[mpi]") {
  constexpr std::size_t rows = 16;
  constexpr int microbatches = 3;
  struct Shares {
    sg::Replicas replicas;
    int ranks;
  };
  for (Shares const& shares :
       {Shares{{{15, 1}, {1, 1}}, 4}, Shares{{1, 3}, 4}, Shares{{3, 1}, 4}, Shares{{3, 2}, 5}}) {
    auto const make = [&](auto device) {
      return sg::Pipeline{Twice{}, Twice{}}.with(Total{}, device, sg::schedule::OneFOneB{},
                                                 sg::optimizer::Sgd{.rate = 1e-3},
                                                 sg::Options{.replicas = shares.replicas});
    };
    sg::Batch<Counted, Counted> batch;
    for (int m = 0; m < microbatches; ++m) {
      Counted x;
      for (std::size_t i = 0; i < rows; ++i) x.numbers.push_back(static_cast<float>(i + 1) / 16);
      batch.inputs.push_back(x);
      batch.targets.push_back(x);
    }
    auto train = make(sg::mpi::Processes{});
    auto alone = make(sg::host::Threads{1});
    for (int s = 0; s < 2; ++s) {
      Counted::sent = 0;
      auto const metrics = sg::run(train.step(batch));
      CHECK(metrics.loss == sg::run(alone.step(batch)).loss);
    }
    std::uint64_t sent = 0;
    MPI_Allreduce(&Counted::sent, &sent, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    if (shares.ranks != processes()) continue;
    CHECK(sent == 2 * microbatches * rows);  // forward, and the same back: each row once
  }
}

}  // namespace rows_test
