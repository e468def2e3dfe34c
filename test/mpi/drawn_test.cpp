// SPDX-License-Identifier: Apache-2.0
#include <stagger/mpi/processes.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <stagger/collective/all_reduce.hpp>
#include <stagger/collective/grouping.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/mpi/session.hpp>
#include <stagger/schedule/chimera.hpp>
#include <stagger/schedule/dual_pipe.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/interleaved.hpp>
#include <stagger/schedule/zero_bubble_v.hpp>
#include <stagger/train/pipeline.hpp>

#include "catch.hpp"
#include "engine/row_oracle.hpp"
#include "full.hpp"
#include "same_steps.hpp"
#include "world.hpp"

namespace drawn_test {

// Whatever is drawn, a pipeline over processes has the bits of one in a process, also after steps
// in which one process failed. All processes draw the same.

using namespace small_model;
namespace grouping = sg::collective::grouping;

namespace {

/// How many calls from now a layer throws in this process; below 0: none does.
int calls_to_failure = -1;

struct FailingDropout : row_model::RowDropout {
  void forward(sg::Context& context, Matrix const& x, Matrix& y, Saved& saved) {
    count();
    RowDropout::forward(context, x, y, saved);
  }
  void backward_input(sg::Context& context, Matrix const& x, Matrix const& dy, Matrix& dx,
                      Saved& saved) {
    count();
    RowDropout::backward_input(context, x, dy, dx, saved);
  }
  static void count() {
    if (calls_to_failure >= 0 && calls_to_failure-- == 0) throw std::runtime_error("no such word");
  }
};

/// One of the groupings, chosen at run time.
struct Drawn {
  using policy_tag = sg::GroupingTag;
  int kind = 0;
  [[nodiscard]] std::vector<sg::collective::LayerGroup> groups(
      sg::collective::Backward const& stage, sg::collective::CostLine line) const {
    switch (kind) {
      case 0:
        return grouping::Layerwise{}.groups(stage, line);
      case 1:
        return grouping::Single{}.groups(stage, line);
      case 2:
        return grouping::Bucket{100}.groups(stage, line);
      default:
        return grouping::Optimal{}.groups(stage, line);
    }
  }
};

struct Case {
  Made schedule;
  int microbatches = 1;
  std::vector<int> cuts;
  sg::Options options;
  sg::collective::AllReduce<Drawn> collective;
};

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : generator_(seed) {}
  /// A number in [a, b].
  int operator()(int a, int b) {
    return a + static_cast<int>(generator_() % static_cast<std::uint64_t>(b - a + 1));
  }

  Case one() {
    using namespace sg::schedule;
    Case result;
    std::array const schedules{made(GPipe{}),       made(OneFOneB{}),    split(made(OneFOneB{}), 2),
                               made(Interleaved{}), made(ZeroBubbleV{}), made(Chimera{}),
                               made(DualPipe{})};
    int const which = (*this)(0, static_cast<int>(schedules.size()) - 1);
    result.schedule = schedules[static_cast<std::size_t>(which)];
    bool const two_ways = which >= 5;
    int const positions = two_ways ? 2 * (*this)(1, 2) : (*this)(1, 3);
    result.microbatches = positions * (*this)(1, 2) * (two_ways ? 2 : 1);
    int const stages = positions * result.schedule.each;
    while (result.cuts.size() + 1 < static_cast<std::size_t>(stages)) {
      int const cut = (*this)(1, layers - 1);
      if (std::find(result.cuts.begin(), result.cuts.end(), cut) == result.cuts.end())
        result.cuts.push_back(cut);
    }
    std::sort(result.cuts.begin(), result.cuts.end());
    std::vector<int> counts;
    int ranks = 0;
    while (ranks < processes()) {
      counts.clear();
      ranks = 0;
      for (int p = 0; p < positions; ++p)
        ranks += counts.emplace_back((*this)(1, std::max(4, processes())));
    }
    sg::Options& options = result.options;
    options.replicas = sg::Replicas::even(counts.data(), counts.size());
    options.seed = run_seed;
    options.recompute = (*this)(0, 1) == 1;
    options.record = (*this)(0, 1) == 1;
    if ((*this)(0, 1) == 1) options.clip_norm = clip;
    if ((*this)(0, 2) == 0) options.spare_slots = (*this)(0, 2);
    options.deadline_s = 20;
    result.collective.grouping.kind = (*this)(0, 3);
    result.collective.shard_optimizer = ranks > positions && (*this)(0, 1) == 1;
    result.collective.measured_steps = (*this)(0, 2);
    result.collective.renew_every = (*this)(0, 1) * 2;
    return result;
  }

 private:
  std::mt19937_64 generator_;
};

auto over_processes(Case const& one) {
  return sg::Pipeline{
      sg::Sequential{Embedding{}, Dense{}, Curve{}, FailingDropout{}, Dense{5}, Curve{}, Dense{7}}}
      .with(sg::partition::Cuts{one.cuts}, one.schedule, Loss{}, optimizer(), sg::mpi::Processes{},
            one.collective, one.options);
}

}  // namespace

TEST_CASE("mpi/Processes: random pipelines have the bits of one process, also after failures",
          "[mpi]") {
  int const cases = full() ? 300 : 10;
  int failures = 0;
  for (int seed = 0; seed < cases; ++seed) {
    Draw draw(static_cast<std::uint64_t>(seed));
    Case const one = draw.one();
    CAPTURE(seed, one.cuts, one.microbatches, one.collective.shard_optimizer);
    auto there = over_processes(one);
    auto here = row_model::pipeline(sg::host::Threads{1}, one.cuts, one.schedule, one.options);
    for (int step = 0; step < 4; ++step) {
      int const who = draw(0, 2 * processes() - 1);  // half of the time nobody
      int const when = draw(0, 2 * one.microbatches);
      Batch const data = row_model::batch(step, one.microbatches, 4, true);
      calls_to_failure = who == process() ? when : -1;
      std::string said;
      try {
        sg::run(there.step(data));
      } catch (std::exception const& error) {
        said = error.what();
      }
      calls_to_failure = -1;
      int everywhere = said.empty() ? 0 : 1;
      MPI_Allreduce(MPI_IN_PLACE, &everywhere, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
      REQUIRE(everywhere == (said.empty() ? 0 : processes()));
      if (said.empty()) {
        sg::run(here.step(data));
      } else {
        REQUIRE_THAT(said, Catch::Contains("no such word"));
        ++failures;
      }
      require_same_steps(there, here, data);
      double const held_out = sg::run(there.evaluate(data)).loss;
      REQUIRE(held_out == sg::run(here.evaluate(data)).loss);
    }
    there.gather_parameters();
    REQUIRE(bits(there) == bits(here));
  }
  REQUIRE(failures > cases / 5);
}

}  // namespace drawn_test
